"""Estimators in the conventions of scikit-learn, which the extra `sklearn` installs."""

try:
    from fedlap.estimators.fedu_estimators import FedUClassifier, FedURegressor
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "sklearn":
        raise
    raise ImportError("the estimators need scikit-learn; run pip install 'fedlap[sklearn]'") from error

__all__ = ["FedUClassifier", "FedURegressor"]
