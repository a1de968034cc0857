"""Where the project lies. Importing this lets a script import the modules of LSTM/ as the programs there do."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AUDIO_DATA = ROOT / "audio_data"

sys.path.insert(0, str(ROOT / "LSTM"))
