"""Training beside a simulation that runs: what solver ranks put is a stream of samples.

    solver ranks   put(**fields) --records--> buffer of a trainer --> Samples --> train()   trainers
                   predict(x)    <--images------------------------------------ publish(model)
                   steered       <--values------------------------------------ steer(...)

coupled.py      the public face                    solver.py      the solver's side
sides.py        who is who, which put is which     receiving.py   what a trainer takes
                sample                             reading.py     what trainers read together
records.py      fields as bytes                    predicting.py  models, on their way back
buffers.py      what is kept of them               stream.py      a run that trains on puts
desk.py         notes between all of them          attendant.py   who takes them, and how all part
"""

from ..public import public_names

__getattr__, __dir__, __all__ = public_names(
    __name__, {"coupled": "Coupled", "moments": "FieldMoments"}
)
