"""``python -m mfswb``: the same as ``mfswb-run``, for ``torchrun -m``."""

from mfswb.cli import main

if __name__ == "__main__":
    main()
