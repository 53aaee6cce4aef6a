"""nn: what is no public name of a model's mathematics."""

from . import open_door

ROOM = "shardkit.nn"
NAMES = {
    "autograd": "CheapTensor array_of",
    "context": "late_logits",
    "generation": "Choice Passes",
    "init": "CHUNK Fill Normal Uniform",
    "late": "LateLogits MANY_CLASSES",
    "metrics": "Accuracy Coverage MAE MacroF1 R2 RMSE exact_lanes exact_value",
    "models.gpt": "TokenEmbedding",
    "models.mlp": "ACTIVATIONS",
    "module": "exchange",
    "ops.attention": "packed_attention",
    "ops.blocks": "ROWS_OF_BLOCK goes_by_blocks",
    "ops.gathered": "linear_of_gathered side_by_side",
    "ops.modes": "from_modes multiply_modes to_modes",
    "parameter": "SlicedParameter",
    "settings": "Model",
    "tape": "parameter_uses walk",
    "texts": "TextPass Texts",
    "transformer": "STYLES SelfAttention",
}
MODULES = {
    "blocks": "ops.blocks",
    "doors": "doors",
    "generation": "generation",
    "methods": "methods",
    "operators": "operators",
    "ops_linear": "ops.linear",
    "ops_loss": "ops.loss",
    "transformer": "transformer",
}

open_door(__name__)
