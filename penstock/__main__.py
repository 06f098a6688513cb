"""`python -m penstock`: the command line."""

from penstock.cli import app

if __name__ == "__main__":
    app(prog_name="penstock")
