"""Runs main_trainer several times with the same ranks: argv is a JSON list of words for each."""

import json
import sys

import main_trainer

for words in sys.argv[1:]:
    main_trainer.main(json.loads(words))
