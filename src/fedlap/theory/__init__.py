"""The paper's theory with numbers: constants of a problem, its minimiser, both theorems (see THEORY.md)."""

from fedlap.theory.bounds import Constants, Theorem1, Theorem2, lemma1
from fedlap.theory.curvature import Curvature, along, at_point, everywhere
from fedlap.theory.optimum import Optimum, optimum
from fedlap.theory.problem import Problem
from fedlap.theory.study import Study, described, excess, rate, study
from fedlap.theory.weighted_iterate import Weighted, walk, weight, weighted

__all__ = [
    "Constants",
    "Curvature",
    "Optimum",
    "Problem",
    "Study",
    "Theorem1",
    "Theorem2",
    "Weighted",
    "along",
    "at_point",
    "described",
    "everywhere",
    "excess",
    "lemma1",
    "optimum",
    "rate",
    "study",
    "walk",
    "weight",
    "weighted",
]
