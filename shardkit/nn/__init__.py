"""The mathematics of a model on one process: tensors, operations, modules, losses, models.

It knows nothing of ranks.
"""

from functools import partial

from . import methods, operators, ops  # two of them: what they give to Tensor
from ..habits import place_of
from ..public import public_names

__getattr__, __dir__, __all__ = public_names(
    __name__,
    {
        ".": "functional=ops init models ops",
        "autograd": "Tensor backward_inputs enable_grad no_grad record",
        "buffer": "Buffer",
        "context": "ForwardContext current_context current_objective forward_context",
        "derivative": "grad",
        "features": "InputFeatures input_features",
        "layers.activation": (
            "ELU Flatten GELU Hardtanh Identity LeakyReLU LogSoftmax Mish ReLU SiLU Sigmoid "
            "Softmax Softplus Tanh"
        ),
        "layers.attention": "MultiheadAttention RelativePositionBias TransformerEncoderLayer",
        "layers.basic": "Dropout Embedding LayerNorm Linear RMSNorm Sequential",
        "layers.convolution": (
            "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d"
        ),
        "layers.derivatives": "Derivatives",
        "layers.embedding": "EmbeddedColumns EmbeddingBag",
        "layers.normalization": (
            "BatchNorm1d BatchNorm2d BatchNorm3d GroupNorm InstanceNorm1d InstanceNorm2d "
            "InstanceNorm3d"
        ),
        "layers.decoder": ("TransformerDecoder TransformerDecoderLayer TransformerEncoder"),
        "layers.functions": (
            "CELU CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d "
            "ConstantPad3d CosineSimilarity Dropout1d Dropout2d Dropout3d Fold GLU Hardshrink "
            "Hardsigmoid Hardswish LogSigmoid PReLU PairwiseDistance PixelShuffle PixelUnshuffle "
            "ReLU6 ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d "
            "ReplicationPad2d ReplicationPad3d SELU Softshrink Softsign Tanhshrink Threshold "
            "Unfold ZeroPad1d ZeroPad2d ZeroPad3d"
        ),
        "layers.pooling": (
            "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d "
            "AdaptiveMaxPool2d AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d MaxPool1d "
            "MaxPool2d MaxPool3d"
        ),
        "layers.recurrent": "GRU GRUCell LSTM LSTMCell RNN RNNCell",
        "layers.resampling": "Upsample",
        "layers.spectral": "SpectralConv",
        "other_losses": "BCELoss CTCLoss PoissonNLLLoss TripletMarginLoss",
        "lora": "LoRALinear apply_lora merge_lora",
        "loss": "BinaryCrossEntropy CrossEntropy Loss MeanSquaredError Weighted as_loss",
        "losses": (
            "BCEWithLogitsLoss CosineEmbeddingLoss CrossEntropyLoss GaussianNLLLoss "
            "HuberLoss KLDivLoss L1Loss MSELoss NLLLoss PinballLoss RelativeL2Loss "
            "SmoothL1Loss"
        ),
        "containers": "ModuleDict ParameterDict ParameterList",
        "module": "Module ModuleList",
        "objectives": "Objectives",
        "parameter": "Parameter",
        "on_parts": "partwise",
        "tape": "is_grad_enabled",
        "texts": "begin_text",
        "transformer": "FeedForward GatedFeedForward SelfAttention TransformerBlock",
        "trees": "as_tensors",
    },
    partial(place_of, "nn", lambda: {"nn.ops": ops.__all__}),
)
