"""`python -m proxy.config` in the repository's root: writes the example and the schema anew from the models."""

import sys
from pathlib import Path

from proxy.config.example import example_yaml, schema_json


def main() -> None:
    """Write config/tidegate.yaml and config/schema.json.

    Raises:
        SystemExit: the working directory has no config folder.
    """
    folder = Path("config")
    if not folder.is_dir():
        raise SystemExit("run this in the repository's root: there is no config folder here")
    for name, text in (("tidegate.yaml", example_yaml()), ("schema.json", schema_json())):
        (folder / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {folder / name}\n")


if __name__ == "__main__":
    main()
