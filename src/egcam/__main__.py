"""The command `egcam`, also as `python -m egcam`."""

from egcam.interrupts import end_quietly


def main() -> None:
    """Run the command."""
    end_quietly()
    from egcam.cli import main as command

    command()


if __name__ == "__main__":
    main()
