"""The mathematics of a model on one process: tensors, operations, modules, losses, models.

It knows nothing of ranks.
"""

from . import init, methods, models, operators, ops  # noqa: F401  two of them: given to Tensor
from .autograd import (
    Tensor,
    backward_inputs,
    enable_grad,
    is_grad_enabled,
    no_grad,
    record,
)
from .buffer import Buffer
from .context import ForwardContext, current_context, forward_context
from .derivative import grad
from .features import InputFeatures, input_features
from .layers.activation import (
    ELU,
    GELU,
    Flatten,
    Hardtanh,
    Identity,
    LeakyReLU,
    LogSoftmax,
    Mish,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from .layers.attention import (
    MultiheadAttention,
    RelativePositionBias,
    TransformerEncoderLayer,
)
from .layers.basic import Dropout, Embedding, LayerNorm, Linear, RMSNorm, Sequential
from .layers.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from .layers.derivatives import Derivatives
from .layers.embedding import EmbeddingBag
from .layers.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from .layers.recurrent import GRU, LSTM
from .layers.spectral import SpectralConv
from .loss import (
    BinaryCrossEntropy,
    CrossEntropy,
    Loss,
    MeanSquaredError,
    Weighted,
    as_loss,
)
from .losses import (
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CrossEntropyLoss,
    GaussianNLLLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    RelativeL2Loss,
    SmoothL1Loss,
)
from .module import Module, ModuleList, Parameter
from .transformer import (
    FeedForward,
    GatedFeedForward,
    SelfAttention,
    TransformerBlock,
)

__all__ = [
    "GRU",
    "LSTM",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "BinaryCrossEntropy",
    "Buffer",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CosineEmbeddingLoss",
    "CrossEntropy",
    "CrossEntropyLoss",
    "Derivatives",
    "Dropout",
    "ELU",
    "Embedding",
    "EmbeddingBag",
    "FeedForward",
    "Flatten",
    "ForwardContext",
    "GELU",
    "GatedFeedForward",
    "GaussianNLLLoss",
    "Hardtanh",
    "GroupNorm",
    "HuberLoss",
    "Identity",
    "InputFeatures",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "KLDivLoss",
    "L1Loss",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "Loss",
    "MSELoss",
    "MeanSquaredError",
    "Mish",
    "Module",
    "ModuleList",
    "MultiheadAttention",
    "NLLLoss",
    "Parameter",
    "RMSNorm",
    "RelativeL2Loss",
    "RelativePositionBias",
    "ReLU",
    "SelfAttention",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Tanh",
    "SpectralConv",
    "Tensor",
    "TransformerBlock",
    "TransformerEncoderLayer",
    "Weighted",
    "as_loss",
    "backward_inputs",
    "current_context",
    "enable_grad",
    "forward_context",
    "grad",
    "init",
    "input_features",
    "is_grad_enabled",
    "models",
    "no_grad",
    "ops",
    "record",
]
