"""``python -m sweep``: the same as the command ``sweep``."""

from sweep.cli.program import main

if __name__ == "__main__":
    main(prog_name="sweep")
