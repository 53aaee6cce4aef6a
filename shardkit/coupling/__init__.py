"""Training beside a simulation that runs: what solver ranks put is a stream of samples.

    solver ranks   put(**fields) --records--> buffer of a trainer --> Samples --> train()   trainers
                   predict(x)    <--images------------------------------------ publish(model)
                   steered       <--values------------------------------------ steer(...)

coupled.py      the public face                    solver.py      the solver's side
order.py        which put is which sample          receiving.py   what a trainer takes
records.py      fields as bytes                    reading.py     what trainers read together
buffers.py      what is kept of them               desk.py        notes between all of them
waiting.py      who waits for a first model        departure.py    how all of them part
"""

from ..public import public_names

__getattr__, __dir__, __all__ = public_names(
    __name__, {"coupled": "Coupled", "moments": "FieldMoments"}
)
