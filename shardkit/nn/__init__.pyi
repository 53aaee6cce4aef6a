# Written by packaging/stubs.py, from the table in __init__.py.
from . import (
    init as init,
    models as models,
    ops as ops,
)
from .autograd import (
    Tensor as Tensor,
    backward_inputs as backward_inputs,
    enable_grad as enable_grad,
    no_grad as no_grad,
    record as record,
)
from .buffer import Buffer as Buffer
from .context import (
    ForwardContext as ForwardContext,
    current_context as current_context,
    current_objective as current_objective,
    forward_context as forward_context,
)
from .derivative import grad as grad
from .features import (
    InputFeatures as InputFeatures,
    input_features as input_features,
)
from .layers.activation import (
    ELU as ELU,
    Flatten as Flatten,
    GELU as GELU,
    Hardtanh as Hardtanh,
    Identity as Identity,
    LeakyReLU as LeakyReLU,
    LogSoftmax as LogSoftmax,
    Mish as Mish,
    ReLU as ReLU,
    SiLU as SiLU,
    Sigmoid as Sigmoid,
    Softmax as Softmax,
    Softplus as Softplus,
    Tanh as Tanh,
)
from .layers.attention import (
    MultiheadAttention as MultiheadAttention,
    RelativePositionBias as RelativePositionBias,
    TransformerEncoderLayer as TransformerEncoderLayer,
)
from .layers.basic import (
    Dropout as Dropout,
    Embedding as Embedding,
    LayerNorm as LayerNorm,
    Linear as Linear,
    RMSNorm as RMSNorm,
    Sequential as Sequential,
)
from .layers.convolution import (
    Conv1d as Conv1d,
    Conv2d as Conv2d,
    Conv3d as Conv3d,
    ConvTranspose1d as ConvTranspose1d,
    ConvTranspose2d as ConvTranspose2d,
    ConvTranspose3d as ConvTranspose3d,
)
from .layers.derivatives import Derivatives as Derivatives
from .layers.embedding import (
    EmbeddedColumns as EmbeddedColumns,
    EmbeddingBag as EmbeddingBag,
)
from .layers.normalization import (
    BatchNorm1d as BatchNorm1d,
    BatchNorm2d as BatchNorm2d,
    BatchNorm3d as BatchNorm3d,
    GroupNorm as GroupNorm,
    InstanceNorm1d as InstanceNorm1d,
    InstanceNorm2d as InstanceNorm2d,
    InstanceNorm3d as InstanceNorm3d,
)
from .layers.decoder import (
    TransformerDecoder as TransformerDecoder,
    TransformerDecoderLayer as TransformerDecoderLayer,
    TransformerEncoder as TransformerEncoder,
)
from .layers.functions import (
    CELU as CELU,
    CircularPad1d as CircularPad1d,
    CircularPad2d as CircularPad2d,
    CircularPad3d as CircularPad3d,
    ConstantPad1d as ConstantPad1d,
    ConstantPad2d as ConstantPad2d,
    ConstantPad3d as ConstantPad3d,
    CosineSimilarity as CosineSimilarity,
    Dropout1d as Dropout1d,
    Dropout2d as Dropout2d,
    Dropout3d as Dropout3d,
    Fold as Fold,
    GLU as GLU,
    Hardshrink as Hardshrink,
    Hardsigmoid as Hardsigmoid,
    Hardswish as Hardswish,
    LogSigmoid as LogSigmoid,
    PReLU as PReLU,
    PairwiseDistance as PairwiseDistance,
    PixelShuffle as PixelShuffle,
    PixelUnshuffle as PixelUnshuffle,
    ReLU6 as ReLU6,
    ReflectionPad1d as ReflectionPad1d,
    ReflectionPad2d as ReflectionPad2d,
    ReflectionPad3d as ReflectionPad3d,
    ReplicationPad1d as ReplicationPad1d,
    ReplicationPad2d as ReplicationPad2d,
    ReplicationPad3d as ReplicationPad3d,
    SELU as SELU,
    Softshrink as Softshrink,
    Softsign as Softsign,
    Tanhshrink as Tanhshrink,
    Threshold as Threshold,
    Unfold as Unfold,
    ZeroPad1d as ZeroPad1d,
    ZeroPad2d as ZeroPad2d,
    ZeroPad3d as ZeroPad3d,
)
from .layers.pooling import (
    AdaptiveAvgPool1d as AdaptiveAvgPool1d,
    AdaptiveAvgPool2d as AdaptiveAvgPool2d,
    AdaptiveAvgPool3d as AdaptiveAvgPool3d,
    AdaptiveMaxPool1d as AdaptiveMaxPool1d,
    AdaptiveMaxPool2d as AdaptiveMaxPool2d,
    AdaptiveMaxPool3d as AdaptiveMaxPool3d,
    AvgPool1d as AvgPool1d,
    AvgPool2d as AvgPool2d,
    AvgPool3d as AvgPool3d,
    MaxPool1d as MaxPool1d,
    MaxPool2d as MaxPool2d,
    MaxPool3d as MaxPool3d,
)
from .layers.recurrent import (
    GRU as GRU,
    GRUCell as GRUCell,
    LSTM as LSTM,
    LSTMCell as LSTMCell,
    RNN as RNN,
    RNNCell as RNNCell,
)
from .layers.resampling import Upsample as Upsample
from .layers.spectral import SpectralConv as SpectralConv
from .other_losses import (
    BCELoss as BCELoss,
    CTCLoss as CTCLoss,
    PoissonNLLLoss as PoissonNLLLoss,
    TripletMarginLoss as TripletMarginLoss,
)
from .lora import (
    LoRALinear as LoRALinear,
    apply_lora as apply_lora,
    merge_lora as merge_lora,
)
from .loss import (
    BinaryCrossEntropy as BinaryCrossEntropy,
    CrossEntropy as CrossEntropy,
    Loss as Loss,
    MeanSquaredError as MeanSquaredError,
    Weighted as Weighted,
    as_loss as as_loss,
)
from .losses import (
    BCEWithLogitsLoss as BCEWithLogitsLoss,
    CosineEmbeddingLoss as CosineEmbeddingLoss,
    CrossEntropyLoss as CrossEntropyLoss,
    GaussianNLLLoss as GaussianNLLLoss,
    HuberLoss as HuberLoss,
    KLDivLoss as KLDivLoss,
    L1Loss as L1Loss,
    MSELoss as MSELoss,
    NLLLoss as NLLLoss,
    PinballLoss as PinballLoss,
    RelativeL2Loss as RelativeL2Loss,
    SmoothL1Loss as SmoothL1Loss,
)
from .containers import (
    ModuleDict as ModuleDict,
    ParameterDict as ParameterDict,
    ParameterList as ParameterList,
)
from .module import (
    Module as Module,
    ModuleList as ModuleList,
)
from .objectives import Objectives as Objectives
from .parameter import Parameter as Parameter
from .on_parts import partwise as partwise
from .tape import is_grad_enabled as is_grad_enabled
from .texts import begin_text as begin_text
from .transformer import (
    FeedForward as FeedForward,
    GatedFeedForward as GatedFeedForward,
    SelfAttention as SelfAttention,
    TransformerBlock as TransformerBlock,
)
from .trees import as_tensors as as_tensors

functional = ops
