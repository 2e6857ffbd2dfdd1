"""`python -m egcam`, the same as the command `egcam`."""

from egcam.cli import main

if __name__ == "__main__":
    main()
