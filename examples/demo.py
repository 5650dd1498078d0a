"""ResNet-50 onto four FPGAs and GPT-2 onto four torch stages, both verified.

Weights are random and seeded, so that no two channels are equal and a swapped one would show; the
statistics of ResNet-50's normalisations are those of random images.
Everything is done by the command that a user would type; the commands are printed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

MODELS = Path(os.path.relpath(Path(__file__).parent))
OUT = Path(".demo")
PIPEC = Path(sys.executable).with_name("pipec")


def pipec(*args: object) -> None:
    """Run one command, printed first; stop the demo if it fails."""
    words = [str(a) for a in args]
    print(f"\n$ pipec {' '.join(words)}", flush=True)
    subprocess.run([PIPEC, *words], check=True)


def main() -> None:
    """Compile, inspect and verify both models."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    local = OUT / "resnet50.onnx"
    print(f"$ python {MODELS / 'resnet.py'} {local}", flush=True)
    subprocess.run([sys.executable, MODELS / "resnet.py", local], check=True)
    pipec("compile", local, "--target", "fpga", "--devices", "4xvcu118", "-o", OUT / "resnet50")
    pipec("inspect", OUT / "resnet50")
    pipec("verify", OUT / "resnet50")

    pipec("compile", f"{MODELS / 'gpt2.py'}:gpt2", "--devices", "4xh100", "-o", OUT / "gpt2")
    pipec("inspect", OUT / "gpt2")
    pipec("verify", OUT / "gpt2")
    print("\nLook at .demo/resnet50/stage0*/src and .demo/gpt2/graphs/*/F.py")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
