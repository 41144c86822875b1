"""Selected points of a sweep on real devices: prediction and measurement side by side.

Three ways to start it (torch comes with the extra ``torch``; ``--dry-run`` and ``--help`` need none)::

    torchrun --standalone --nproc_per_node 2 -m sweep.torch_runner --label default
    sweep validate --label default                          the same through torch's own launcher
    python -m sweep.torch_runner --dry-run                  the plan alone

One process is one replica. `arguments` holds the options, `plan` what each rank is given, `points` the cells of a
Dataset, `rank` what a process does, `watch` what happens when one dies, `decision` the verdict and `result` the file.
"""
