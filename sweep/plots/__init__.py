"""Pictures of a result. Every function returns a matplotlib Figure that belongs to the caller alone."""

from sweep.plots.curves import lines, tradeoff
from sweep.plots.heatmap import excess, heatmaps
from sweep.plots.maps import axis_map
from sweep.plots.replays import loads, timeline

__all__ = ["axis_map", "excess", "heatmaps", "lines", "loads", "timeline", "tradeoff"]
