"""The checker of types and shapes that is on while tests run; whole numbers may stand for real ones."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
