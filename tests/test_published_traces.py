"""The published traces, where they are on this machine: whole files against figures computed elsewhere."""

import pytest
from trace_samples import MOON, SHARED, here, lines

from sweep.errors import InputError
from sweep.traces import format_of, read
from sweep.traces.statistics import picture, statistics, text

# --- The published files ----------------------------------------------------------------------------------------------

WHOLE = {
    "mooncake/conversation_trace.jsonl": {
        "n": 12_031, "duration_s": 3537.0, "rate_per_s": 3.4015, "cv": 3.03, "dispersion_1s": 7.89,
        "dispersion_10s": 2.09, "dispersion_60s": 2.85, "input_mean": 12_035, "input_p50": 6_909, "input_p99": 85_400,
        "input_max": 126_195, "output_mean": 342.6, "output_p50": 350, "output_p99": 1_119, "output_max": 2_000,
        "zero_output": 0, "blocks": 288_500, "distinct_blocks": 182_790, "block_reuse": 0.3664, "token_reuse": 0.3736,
        "requests_with_reuse": 0.9999,
    },
    "mooncake/arxiv_trace_window_190rows.jsonl": {
        "n": 190, "duration_s": 27.5, "rate_per_s": 6.91, "cv": 4.47, "input_mean": 7_444, "input_p50": 6_178,
        "input_p99": 30_392, "input_max": 42_101, "output_mean": 184.4, "output_p50": 32, "output_p99": 752,
        "output_max": 1_048, "zero_output": 0, "block_reuse": 0.3658, "token_reuse": 0.3805,
        "requests_with_reuse": 0.984,
    },
    "azure/AzureLLMInferenceTrace_conv.csv": {
        "n": 19_366, "duration_s": 3501.7, "rate_per_s": 5.5304, "cv": 1.09, "dispersion_1s": 1.39,
        "dispersion_10s": 4.00, "dispersion_60s": 20.6, "input_mean": 1154.7, "input_p50": 1_020, "input_p99": 4_142,
        "input_max": 14_050, "output_mean": 211.1, "output_p50": 129, "output_p99": 601, "output_max": 1_000,
        "zero_output": 0,
    },
    "burstgpt/BurstGPT_1_first400.csv": {
        "n": 400, "duration_s": 37_269, "rate_per_s": 0.0107, "cv": 4.56, "dispersion_1s": 1.01, "dispersion_10s": 1.24,
        "dispersion_60s": 2.77, "input_mean": 520.5, "input_p50": 314, "input_p99": 1_958, "input_max": 2_126,
        "output_mean": 276.5, "output_p50": 230, "output_p99": 1_421, "output_max": 2_019, "zero_output": 17,
    },
    "burstgpt/BurstGPT_3_first400.csv": {
        "n": 400, "duration_s": 41_453, "rate_per_s": 0.0096, "cv": 2.87, "dispersion_1s": 1.01, "dispersion_10s": 1.19,
        "dispersion_60s": 2.26, "input_mean": 617.4, "input_p50": 308, "input_p99": 5_929, "input_max": 25_085,
        "output_mean": 170.9, "output_p50": 101, "output_p99": 862, "output_max": 1_101, "zero_output": 1,
        "sessions": 135, "turns_mean": 2.92, "turns_max": 24, "single_turn": 59, "turn_gap_p50_s": 123,
        "turn_gap_p90_s": 1_393,
    },
    "ragpulse/0_trace.jsonl": {
        "n": 7_106, "duration_s": 604_603, "rate_per_s": 0.0118, "cv": 3.06, "dispersion_1s": 1.01,
        "dispersion_10s": 1.07, "dispersion_60s": 1.73, "input_mean": 2943.6, "input_p50": 3_140, "input_p99": 5_438,
        "input_max": 7_712, "output_mean": 283.2, "output_p50": 234, "output_p99": 891, "output_max": 2_183,
        "zero_output": 0, "sessions": 3_990, "turns_mean": 1.78, "turns_max": 25, "single_turn": 2_347,
        "turn_gap_p50_s": 40, "turn_gap_p90_s": 300, "token_reuse": 0.3143, "requests_with_reuse": 0.9996,
    },
}  # fmt: skip


@here
@pytest.mark.parametrize("name", list(WHOLE))
def test_published__statistics_of_the_whole_file(name):
    found = statistics(read(SHARED / name))
    for key, value in WHOLE[name].items():
        digits = len(str(value).partition(".")[2]) if isinstance(value, float) else 0
        # Half a unit of the last digit printed, and what its own rounding may add.
        assert abs(found[key] - value) <= 0.51 * 10.0**-digits, (key, found[key], value)


@here
def test_published__ragpulse_reuse_of_what_the_components_stand_for():
    requests = read(SHARED / "ragpulse" / "0_trace.jsonl")
    seen = requests.blocks.tokens_of(requests.blocks.seen_before(), requests.prompt_tokens)
    # The published 0.315 divides by the tokens of the components; the template's 0.3 % of the prompts are not in them.
    assert round(float(seen.sum() / requests.blocks.tokens.sum()), 3) == 0.315


@here
def test_published__formats_are_told_apart():
    expected = {
        "conversation_trace.jsonl": "mooncake",
        "0_trace.jsonl": "ragpulse",
        "kv-cache-tester": "kv-cache-tester",
    }
    for pattern in ("mooncake/conv*", "ragpulse/0*", "kv-cache-tester", "kv-cache-tester/trace_0022.json"):
        (path,) = SHARED.glob(pattern)
        assert format_of(path) == expected.get(path.name, "kv-cache-tester")
    sessions = read(SHARED / "kv-cache-tester")
    assert (len(sessions), sessions.session_count, len(sessions.blocks.ids)) == (93, 10, 54_500)


def test_statistics__text_and_picture(written):
    requests = read(written(lines(*MOON)))
    printed = text(requests)
    assert "requests " in printed and "reuse in an unbounded cache" in printed
    assert len(picture(requests).axes) == 3
    with pytest.raises(InputError, match="No time passes"):
        picture(read(written(lines(MOON[0]))))
    assert "-" in text(read(written(lines(MOON[0]))))
