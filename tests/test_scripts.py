"""What the scripts say of themselves; none of this installs or starts anything."""

import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("check", "before a commit"),
        ("test", "--slow"),
        ("run", "--listen"),
        ("bench", "scripts/bench WHAT"),
    ],
)
def test_help_is_the_scripts_own(script: str, words: str) -> None:
    done = subprocess.run([SCRIPTS / script, "--help"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert words in done.stdout
    if script == "bench":
        listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
        assert {path.stem.removeprefix("bench_") for path in SCRIPTS.glob("bench_*.py")} < listed
