"""``python -m sweep.torch_runner``, alone or under torchrun."""

from sweep.torch_runner.command import main

if __name__ == "__main__":
    main(prog_name="python -m sweep.torch_runner")
