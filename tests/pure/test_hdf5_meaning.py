"""Numbers of HDF5 that their attributes scale, or say are none, as netCDF files have them."""

import h5py
import numpy
import pytest
from table_rows import rows_in

from shardkit import ConfigurationError
from shardkit.testing.data import Columns, open_table

ROWS = 60
PLACES = {"in place": {}, "chunks": {"chunks": (7, 4)}, "compressed": {"compression": 4}}


def write(path, stored, attributes, **how):
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", data=stored, **how)
        made.attrs.update(attributes)
        file["y"] = numpy.zeros(len(stored), "float32")


def meant(stored, attributes, dtype):
    """The definition, number by number."""
    none = numpy.atleast_1d(attributes.get("_FillValue", [])).tolist()
    none += numpy.atleast_1d(attributes.get("missing_value", [])).tolist()
    packing = attributes.get("scale_factor", 1), attributes.get("add_offset", 0)
    scale, offset = (numpy.asarray(number).item() for number in packing)
    numbers = [
        numpy.nan if number in none else number * scale + offset
        for number in stored.reshape(-1).tolist()
    ]
    return numpy.array(numbers, dtype).reshape(stored.shape)


FLOAT, DOUBLE, SHORT = numpy.float32, numpy.float64, numpy.int16
MEANINGS = {  # stored dtype, attributes, dtype meant
    "none": ("f4", {}, "f4"),
    "NaN is none": ("f4", {"_FillValue": FLOAT(numpy.nan)}, "f4"),
    "a fill value": ("f4", {"_FillValue": FLOAT(7)}, "f4"),
    "one of another type": ("f4", {"_FillValue": DOUBLE(7)}, "f4"),
    "several": ("f8", {"missing_value": DOUBLE([7, 8]), "_FillValue": DOUBLE([9])}, "f8"),
    "in the other byte order": (">f4", {"_FillValue": FLOAT(7)}, "f4"),
    "packed": ("i2", {"scale_factor": FLOAT([0.5]), "add_offset": FLOAT(-3)}, "f4"),
    "packed, with none": ("i2", {"scale_factor": DOUBLE(0.5), "_FillValue": SHORT(7)}, "f8"),
    "packed bytes": ("u1", {"add_offset": SHORT(-3)}, "f4"),
    "packed long numbers": (">i4", {"scale_factor": FLOAT(0.25)}, "f8"),
    "packed by one": ("i2", {"scale_factor": FLOAT(1), "add_offset": FLOAT(0)}, "i2"),
    "none that such numbers cannot be": ("i2", {"missing_value": FLOAT([1e20, numpy.nan])}, "i2"),
    "whole numbers that are all there": ("i4", {"_FillValue": numpy.int32(-999)}, "i4"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", MEANINGS)
def test_numbers_mean_what_the_attributes_say(case, place, tmp_path):
    dtype, attributes, wanted = MEANINGS[case]
    stored = numpy.random.default_rng(3).integers(0, 20, (ROWS, 4)).astype(dtype)
    write(tmp_path / "t.nc", stored, attributes, **PLACES[place])
    table = open_table(tmp_path / "t.nc")
    field = table.fields["x"]
    numbers = numpy.random.default_rng(4).integers(0, ROWS, 40)
    for start, stop in ((0, 4), (1, 3)):
        (found,) = table.read(numbers, (Columns(field, start, stop),))
        assert found.dtype == field.dtype.newbyteorder("=") == wanted
        whole = meant(stored, attributes, wanted)
        numpy.testing.assert_array_equal(found, whole[numbers][:, start:stop])


@pytest.mark.parametrize(
    "dtype, words", [("f4", "row 2, column x: nan; wanted"), ("i4", "no value")]
)
def test_what_is_not_there_is_refused_where_numbers_are_wanted(dtype, words, tmp_path):
    stored = numpy.array([1, 2, -9999, 4], dtype)
    write(tmp_path / "t.h5", stored, {"missing_value": numpy.float64(-9999)})
    samples = rows_in(tmp_path / "t.h5", ["x"], ["y"])
    assert samples.read(numpy.array([0, 3]))[0][:, 0].tolist() == [1, 4]
    with pytest.raises(ConfigurationError, match=words) as error:
        samples.read(numpy.arange(4))
    assert "t.h5" in str(error.value)


@pytest.mark.parametrize(
    "wrong",
    [{"scale_factor": "0.5"}, {"scale_factor": [1.0, 2.0]}, {"_FillValue": h5py.Empty("f4")}],
    ids=str,
)
def test_attributes_that_are_no_numbers_are_refused_when_the_field_is_asked_for(wrong, tmp_path):
    write(tmp_path / "t.h5", numpy.ones(8, "f4"), wrong)
    assert rows_in(tmp_path / "t.h5", ["y"]).read(numpy.arange(8))[0].shape == (8, 1)
    with pytest.raises(
        ConfigurationError, match=rf"x of .*t\.h5 has an attribute {[*wrong][0]} of"
    ):
        rows_in(tmp_path / "t.h5", ["x"]).read(numpy.arange(8))
