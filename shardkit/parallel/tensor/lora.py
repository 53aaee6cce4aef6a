"""LoRA beside weights that are cut: one of its two matrices is cut with the weight.

    column   lora_A whole, lora_B cut by rows as the weight       x enters once for both
    row      lora_A cut by columns as the weight, lora_B whole    one sum for both

The matrix that is whole is used for this rank's part only, so its gradient is a term of a sum: its
claim is "partial".
"""

from ...nn.layers.basic import check_width, input_tensor
from ...nn.lora import low_rank_update
from ...nn.module import Module, Parameter
from ...nn.ops.elementwise import add
from ...nn.ops.linear import add_bias, linear
from .layers import TensorAxis


class ColumnParallelLoRALinear(Module):
    """A ColumnParallelLinear with an update of low rank.

    weight [out/T, in] local, bias [out/T] local or None, lora_A [rank, in], lora_B [out/T, rank]
    local; enters, activation: see ColumnParallelLinear
    x [..., in] -> [..., out/T] local; backward sums the gradient of x over the ranks
    """

    def __init__(
        self,
        axis: TensorAxis,
        weight: Parameter,
        bias: Parameter | None,
        lora_A: Parameter,
        lora_B: Parameter,
        scale: float,
        *,
        enters: bool = True,
        activation=None,
    ):
        self.weight, self.bias = weight, bias
        self.lora_A, self.lora_B, self.scale = lora_A, lora_B, scale
        self._axis = axis
        self._enters = enters
        self._activation = activation

    def check_input(self, x):
        check_width("a column-parallel layer", x, self.weight.global_shape[1])

    def forward(self, x, activation=None):
        x = input_tensor(x, self.weight.dtype)
        if self._enters:
            x = self._axis.enter(x)
        update = low_rank_update(x, self.lora_A, self.lora_B, self.scale)
        y = add(linear(x, self.weight, self.bias), update)
        activation = activation or self._activation
        return y if activation is None else activation(y)


class RowParallelLoRALinear(Module):
    """A RowParallelLinear with an update of low rank.

    weight [out, in/T] local, bias [out] or None, lora_A [rank, in/T] local, lora_B [out, rank]
    x [..., in/T] local -> [..., out], one sum over the ranks
    """

    def __init__(
        self,
        axis: TensorAxis,
        weight: Parameter,
        bias: Parameter | None,
        lora_A: Parameter,
        lora_B: Parameter,
        scale: float,
        *,
        activation=None,
    ):
        self.weight, self.bias = weight, bias
        self.lora_A, self.lora_B, self.scale = lora_A, lora_B, scale
        self._axis = axis
        self._activation = activation

    def forward(self, x, activation=None):
        update = low_rank_update(x, self.lora_A, self.lora_B, self.scale)
        total = self._axis.leave(add(linear(x, self.weight), update))
        return add_bias(total, self.bias, activation or self._activation)
