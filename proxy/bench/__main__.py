"""`python -m proxy.bench replay …`: the measuring commands alone."""

import click

from proxy.bench.command import replay


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure an engine, or a proxy in front of one, from the client's side."""


main.add_command(replay)

if __name__ == "__main__":
    main(prog_name="python -m proxy.bench")
