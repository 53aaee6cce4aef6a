"""Sums of products over named dimensions, by transposition and matrix products.

    einsum("bij,bjk->bik", x, y)
    einsum("...i,io->...o", x, weight)

Two operands at a time, from the left: dimensions that nothing needs any more are summed, the others
become one product of matrices [batch, rows, summed] @ [batch, summed, columns]. It is made of other
operations, and so are its gradients.
"""

from math import prod
from string import ascii_letters

from ...errors import ShapeError
from ..autograd import Tensor
from .arrangement import diagonal
from .elementwise import multiply
from .linear import matmul
from .reduction import sum
from .shape import permute, reshape, unsqueeze


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Return the sums of products that the equation names.

    Parameters
    ----------
    equation
        A letter for each dimension: "ij,jk->ik"; "..." stands for any leading ones, which must be
        equal in all operands that have them. Without "->" the result has the letters that stand
        once, in their order.

    Raises
    ------
    ShapeError
        If letters and shapes do not fit.

    Examples
    --------
    >>> ops.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((3, 1)))
    Tensor(array([[3.],
           [3.]]))
    """
    terms, output = _parse(equation, [operand.shape for operand in operands])
    _check_sizes(equation, terms, output, operands)
    singles = [_without_repeats(operand, term) for operand, term in zip(operands, terms)]
    result, letters = singles[0]
    for number, (operand, term) in enumerate(singles[1:], 2):
        needed = set(output).union(*[later for _, later in singles[number:]])
        result, letters = _pair(result, letters, operand, term, needed)
    result, letters = _summed(result, letters, set(output))
    return permute(result, [letters.index(letter) for letter in output]) if output else result


def _parse(equation, shapes):
    """Return the letters of each operand, and of the result; "..." gets letters of its own."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes) or not shapes:
        raise ShapeError(f"einsum {equation!r} of {len(shapes)} operands; wanted {len(terms)}")
    unused = [letter for letter in ascii_letters if letter not in equation]
    counts = [
        len(shape) - len(term) + 3 if "..." in term else 0 for term, shape in zip(terms, shapes)
    ]
    leading = "".join(unused[: max(counts)])
    if min(counts) < 0:
        raise ShapeError(f"einsum {equation!r} of shapes {shapes}, which have too few dimensions")
    terms = [
        term.replace("...", leading[len(leading) - count :]) for term, count in zip(terms, counts)
    ]
    if not arrow:
        whole = "".join(terms)
        named = sorted(set(whole) - set(leading))
        output = "..." + "".join([letter for letter in named if whole.count(letter) == 1])
    return terms, output.replace("...", leading)


def _check_sizes(equation, terms, output, operands):
    """Raise ShapeError unless each letter has one size, and the result's letters stand once."""
    sizes = {}
    for term, operand in zip(terms, operands):
        fits = len(term) == operand.ndim and all(letter in ascii_letters for letter in term)
        if not fits or any(sizes.setdefault(c, n) != n for c, n in zip(term, operand.shape)):
            raise ShapeError(
                f"einsum {equation!r} of shapes {[each.shape for each in operands]}; wanted a "
                "letter for each dimension, and one size for each letter"
            )
    if len(set(output)) < len(output) or not set(output) <= set(sizes):
        raise ShapeError(
            f"einsum {equation!r}: each letter of the result must stand there once, and in an "
            "operand"
        )


def _without_repeats(x, letters):
    """Return x and its letters, with the diagonal where a letter stands twice."""
    for letter in sorted(set(letters)):
        while letters.count(letter) > 1:
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            x = diagonal(x, 0, first, second)
            letters = letters[:first] + letters[first + 1 : second] + letters[second + 1 :] + letter
    return x, letters


def _summed(x, letters, needed):
    """Return x summed over the letters that are not needed, and the others."""
    dims = tuple([dim for dim, letter in enumerate(letters) if letter not in needed])
    kept = "".join([letter for letter in letters if letter in needed])
    return (sum(x, dims) if dims else x), kept


def _pair(x, of_x, y, of_y, needed):
    """Return the product of two operands, summed over what is not needed, and its letters."""
    x, of_x = _summed(x, of_x, needed | set(of_y))
    y, of_y = _summed(y, of_y, needed | set(of_x))
    batch = [letter for letter in of_x if letter in of_y and letter in needed]
    summed = [letter for letter in of_x if letter in of_y and letter not in needed]
    rows = [letter for letter in of_x if letter not in of_y]
    columns = [letter for letter in of_y if letter not in of_x]
    sizes = dict(zip(of_x + of_y, x.shape + y.shape))
    letters = "".join(batch + rows + columns)
    if not summed:
        x = _spread(permute(x, [of_x.index(c) for c in batch + rows]), len(batch + rows), columns)
        y = _spread(permute(y, [of_y.index(c) for c in batch + columns]), len(batch), rows)
        return multiply(x, y), letters
    left = _matrices(x, of_x, sizes, batch, rows, summed)
    right = _matrices(y, of_y, sizes, batch, summed, columns)
    return reshape(matmul(left, right), [sizes[letter] for letter in letters]), letters


def _spread(x, at, letters):
    """Return x with a size of 1 for each letter, from dimension `at` on."""
    for _ in letters:
        x = unsqueeze(x, at)
    return x


def _matrices(x, letters, sizes, *groups):
    """Return x with each group of letters as one dimension; no batch, no dimension for it."""
    order = [letters.index(letter) for group in groups for letter in group]
    merged = [prod([sizes[letter] for letter in group]) for group in groups]
    return reshape(permute(x, order), merged if groups[0] else merged[1:])


def outer(x: Tensor, y: Tensor) -> Tensor:
    """Return [n, m], the products of each element of x [n] with each of y [m]."""
    if x.ndim != 1 or y.ndim != 1:
        raise ShapeError(f"outer of shapes {x.shape} and {y.shape}; wanted two vectors")
    return multiply(unsqueeze(x, 1), unsqueeze(y, 0))


def bmm(x: Tensor, y: Tensor) -> Tensor:
    """Return the products of matrices x [b, n, k] and y [b, k, m]: [b, n, m]."""
    if x.ndim != 3 or y.ndim != 3 or x.shape[0] != y.shape[0]:
        raise ShapeError(f"bmm of {x.shape} and {y.shape}; wanted [b, n, k] and [b, k, m]")
    return matmul(x, y)
