"""Class statistics: the mean and the covariance of each class's features, which a method may keep instead of images.

They are of the network that measured them. When it changes, `moved` takes them along through a linear map. Beside them
there may be the mean of the class's fixed features, which no network changes (`nets/fixed_features.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from reverie.nets.heads import GaussianAnswer, LinearAnswer, PrototypeAnswer, SharedGaussianAnswer
from reverie.nets.softmax_regression import softmax_regression

Form = Literal["means", "own", "diagonal", "shared"]
MOST_FEATURES = 512  # above, a covariance a class would take megabytes each, so it is diagonal
MATRICES = ("covariances", "shared")
PARTS = ("diagonals", "correlations")  # of a covariance in a state
PER_CLASS = ("counts", "means", "covariances", "variances", "fixed")
FORMS: dict[Form, str] = {
    "means": "means alone",
    "own": "a mean and a covariance for each class",
    "diagonal": "a mean and variances for each class",
    "shared": "means and one covariance of all classes",
}
LEAST = 1e-6  # of the mean variance, that is added to every direction so that none is without any
MOST = 2**40  # images of a class
NEGATIVE = 1e-4  # of the largest variance: by less, rounding may take one below zero
FLOOR = 1e-3  # of the mean variance, that is added where features are measured by their variance
ROUNDED = 5e-4  # times the root of the number of features, of each variance: what half precision may take away
ALIKE = 1e-12  # of the mean square of features: images that differ by less differ by rounding


@dataclass(frozen=True)
class ClassStatistics:
    """A row a class, in learned order. At most one of the three kinds of covariance is there.

    `covariances`: a matrix for each class. `variances`: its diagonal alone. `shared`: one matrix, of all classes. What
    is kept of a matrix is half of it, since the other half is the same. Numbers are of single precision, correlations
    and fixed features of half, which is as exact as hundreds of images tell them; with `shared` all are of double: what
    is fitted to all classes by inverting it needs as much.
    """

    counts: Tensor  # images, [classes]
    means: Tensor  # [classes, features]
    covariances: Tensor | None = None  # [classes, features, features]
    variances: Tensor | None = None  # [classes, features]
    shared: Tensor | None = None  # [features, features]
    fixed: Tensor | None = None  # [classes, fixed features]: their means

    def __post_init__(self) -> None:
        classes, features = self.means.shape if self.means.ndim == 2 else (-1, -1)
        wanted = {
            "counts": (classes,),
            "means": (classes, features),
            "covariances": (classes, features, features),
            "variances": (classes, features),
            "shared": (features, features),
            "fixed": (classes, self.fixed.shape[-1] if self.fixed is not None and self.fixed.ndim else -1),
        }
        there = {name: value for name in wanted if (value := getattr(self, name)) is not None}
        for name, value in there.items():
            if tuple(value.shape) != wanted[name]:
                raise ValueError(f"{name} of class statistics have the shape {tuple(value.shape)}, not {wanted[name]}")
            if value.dtype != torch.long if name == "counts" else not value.is_floating_point():
                raise ValueError(f"{name} of class statistics are of the type {value.dtype}")
            if not bool(value.isfinite().all()):
                raise ValueError(f"{name} of class statistics are no longer numbers")
        kinds = len(there) - 2 - ("fixed" in there)
        if kinds > 1 or (len(self.counts) and not 1 <= int(self.counts.min()) <= int(self.counts.max()) < MOST):
            raise ValueError("class statistics are counts of at least one image, means, and one kind of covariance")
        exact = torch.double if self.shared is not None else torch.float
        for name in {*there} - {"counts"}:
            value = there[name].to(exact)
            object.__setattr__(self, name, _symmetric(value) if name in MATRICES else value)
        if self.fixed is not None:
            object.__setattr__(self, "fixed", self.fixed.half().float())
            if not bool(self.fixed.isfinite().all()):
                raise ValueError("means of fixed features are too large for half precision")
        variances = self._variances()
        if variances.numel() and float(variances.amin()) < -NEGATIVE * float(variances.abs().amax()):
            raise ValueError("class statistics have variances below zero")
        if self.covariances is not None:  # what is used is what is kept
            object.__setattr__(self, "covariances", _joined(*_parted(self.covariances)))

    @classmethod
    def measure(
        cls, features: Tensor, labels: Tensor, classes: int, form: Form = "own", fixed: Tensor | None = None
    ) -> ClassStatistics:
        """Of features [images, n] with labels from 0 to `classes` - 1, of each of which there is one image at least.

        `fixed`: the means of fixed features, [classes, m].
        """
        features, labels = features.double(), labels.to(features.device)
        counts = torch.bincount(labels, minlength=classes)
        if len(counts) != classes or int(counts.min()) == 0:
            raise ValueError(f"each of the {classes} classes needs an image to be measured by")
        sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
        means = sums / counts[:, None]
        if form == "means":
            return cls(counts, means, fixed=fixed)
        centred = features - means[labels]
        if form == "shared":
            return cls(counts, means, shared=centred.T @ centred / len(features), fixed=fixed)
        if form_for(form, features.shape[1]) == "diagonal":
            squares = torch.zeros_like(sums).index_add_(0, labels, centred**2)
            return cls(counts, means, variances=squares / counts[:, None], fixed=fixed)
        each = [centred[labels == label] for label in range(classes)]
        covariances = torch.stack([part.T @ part / len(part) for part in each])
        return cls(counts, means, covariances=covariances, fixed=fixed)

    def __len__(self) -> int:
        return len(self.means)

    @property
    def form(self) -> Form:
        if self.covariances is not None:
            return "own"
        if self.variances is not None:
            return "diagonal"
        return "means" if self.shared is None else "shared"

    def described(self) -> str:
        return describe(self.form, self.means.shape[1])

    def joined(self, new: ClassStatistics) -> ClassStatistics:
        """With further classes behind these, of the same form. What is shared is the mean, by images.

        Means of fixed features are there if both have them.
        """
        if (self.form, self.means.shape[1]) != (new.form, new.means.shape[1]):
            raise ValueError(f"class statistics ({new.described()}) cannot be joined to others ({self.described()})")
        pairs = {name: (getattr(self, name), getattr(new, name)) for name in PER_CLASS}
        joined = {name: torch.cat(pair) for name, pair in pairs.items() if all(part is not None for part in pair)}
        if self.shared is not None and new.shared is not None:
            old_images, new_images = int(self.counts.sum()), int(new.counts.sum())
            both = self.shared.double() * old_images + new.shared.double() * new_images
            joined["shared"] = both / (old_images + new_images)
        return ClassStatistics(**joined)

    def select(self, rows: Tensor) -> ClassStatistics:
        """These classes alone, in this order. What classes share stays as it is."""
        kept = {name: value[rows.to(value.device)] for name in PER_CLASS if (value := getattr(self, name)) is not None}
        return ClassStatistics(**kept, shared=self.shared)

    def moved(
        self,
        matrix: Tensor,
        shift: Tensor | None = None,
        residual: Tensor | None = None,
        means: Tensor | None = None,
    ) -> ClassStatistics:
        """As they would be of features @ `matrix` + `shift`, with the covariance of what that leaves unexplained.

        `means`: where they are known by other means than this.
        """
        matrix = matrix.double()
        if means is None:
            means = self.means.double() @ matrix + (0 if shift is None else shift.double())
        added = 0 if residual is None else residual.double()
        if self.covariances is not None:
            return replace(self, means=means, covariances=matrix.T @ self.covariances.double() @ matrix + added)
        if self.shared is not None:
            return replace(self, means=means, shared=matrix.T @ self.shared.double() @ matrix + added)
        if self.variances is not None:  # the diagonal of what the whole covariance would become
            diagonal = added if residual is None else torch.as_tensor(added).diagonal()
            return replace(self, means=means, variances=self.variances.double() @ matrix**2 + diagonal)
        return replace(self, means=means)

    # --- covariances that can be inverted, however few images there were

    def _variances(self) -> Tensor:
        """[classes, features], or [features] of all classes; of means alone there are none."""
        matrices = self.covariances if self.covariances is not None else self.shared
        if matrices is not None:
            return matrices.diagonal(dim1=-2, dim2=-1)
        return self.means.new_zeros(0) if self.variances is None else self.variances

    def _without_spread(self) -> Tensor:
        """Which classes have a single image, or images that are all alike."""
        return (self.counts == 1) | (self._variances().mean(dim=1) <= ALIKE * self.means.square().mean(dim=1))

    def _whole(self) -> Tensor:
        """The pooled covariance, with an inverse."""
        mean = self.pooled()
        diagonal = mean if mean.ndim == 1 else mean.diagonal()
        alike = bool(diagonal.mean() <= ALIKE * self.means.double().square().mean())
        return shrink(torch.zeros_like(mean) if alike else mean, int(self.counts.sum()), self._rounded)

    @property
    def _rounded(self) -> float:
        """The share of each variance that is added to it, so that matrices in half precision have an inverse."""
        return ROUNDED * self.means.shape[1] ** 0.5 if self.covariances is not None else 0.0

    def pooled(self) -> Tensor:
        """The mean covariance inside classes, by images: a matrix, or a diagonal."""
        if self.shared is not None:
            return self.shared.double()
        each = self.covariances if self.covariances is not None else self.variances
        if each is None:
            raise ValueError("these class statistics are means alone")
        share = self.counts.double() / self.counts.sum()
        return torch.tensordot(share, each.double(), dims=1)

    def shrunk(self, pooled: float = 0.0) -> Tensor:
        """A covariance for each class that has an inverse, [classes, n, n] or [classes, n].

        `pooled` of it is the mean over all classes. What is left is drawn towards an equal variance in all directions,
        the more the fewer images there are for the features (oracle approximating shrinkage). Of a class with a single
        image, or with copies of one, nothing is known but its mean: it gets the pooled covariance.
        """
        if not 0 <= pooled <= 1:
            raise ValueError(f"the pooled share of a covariance is between 0 and 1, not {pooled}")
        whole = self._whole()
        each = self.covariances if self.covariances is not None else self.variances
        if each is None:
            return whole.expand(len(self), *whole.shape)
        own = torch.stack(
            [
                whole if alike else shrink(value.double(), int(count), self._rounded)
                for value, count, alike in zip(each, self.counts, self._without_spread(), strict=True)
            ]
        )
        return pooled * whole + (1 - pooled) * own

    def metric(self) -> Tensor:
        """[n, n]: features times this have, inside classes, independent directions of variance one.

        A few thousandths of the mean variance are added, so that directions without any do not decide.
        """
        pooled = self.pooled()
        matrix = torch.diag(pooled) if pooled.ndim == 1 else pooled
        spread = matrix.diagonal().mean().clamp_min(1e-30)
        eye = torch.eye(len(matrix)).to(matrix)
        return torch.linalg.cholesky(torch.linalg.inv(matrix + max(FLOOR, self._rounded) * spread * eye)).float()

    # --- what answers by them

    def prototypes(self) -> PrototypeAnswer:
        return PrototypeAnswer(means=self.means)

    def gaussians(self, pooled: float = 0.0) -> GaussianAnswer | SharedGaussianAnswer:
        """Normal distributions, with `pooled` of each covariance shared by all classes."""
        if pooled == 1 or self.shared is not None:
            return SharedGaussianAnswer(means=self.means, whitening=_whitening(self._whole()[None])[0][0])
        whitening, volumes = _whitening(self.shrunk(pooled))
        return GaussianAnswer(means=self.means, whitening=whitening, log_volumes=volumes)

    def linear(self, each: int, rng: torch.Generator, device: torch.device | str = "cpu") -> LinearAnswer:
        """A linear layer, fitted on `device` to so many samples of each class."""
        features, labels = (part.to(device) for part in self.sample(each, rng))
        weight, bias = softmax_regression(features, labels, len(self))
        return LinearAnswer.of(weight.to(self.means.device), bias.to(self.means.device))

    def sample(self, each: int, rng: torch.Generator, pooled: float = 0.0) -> tuple[Tensor, Tensor]:
        """So many features of each class, drawn from its normal distribution, and their labels."""
        classes, features = self.means.shape
        noise = torch.randn(classes, each, features, generator=rng, device=rng.device, dtype=torch.double)
        noise, covariances = noise.to(self.means.device), self.shrunk(pooled)
        if covariances.ndim == 2:
            spread = noise * covariances.sqrt()[:, None]
        else:
            spread = noise @ torch.linalg.cholesky(covariances).transpose(1, 2)
        drawn = (self.means.double()[:, None] + spread).float().flatten(0, 1)
        return drawn, torch.arange(classes, device=drawn.device).repeat_interleave(each)

    # --- on disk

    def state_dict(self) -> dict[str, Tensor]:
        """Of a matrix [n, n] its lower half, row by row; of a class's own its diagonal, and below it correlations."""
        there = {name: value for name, value in vars(self).items() if value is not None}
        if self.fixed is not None:
            there["fixed"] = self.fixed.half()
        if (covariances := there.pop("covariances", None)) is not None:
            there |= dict(zip(PARTS, _parted(covariances), strict=True))
        return {name: _half(value) if name in MATRICES else value for name, value in there.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], device: torch.device | str = "cpu") -> ClassStatistics:
        """Raises ValueError for a state that is none."""
        if {*state} - {*cls.__dataclass_fields__, *PARTS} or not {"counts", "means"} <= {*state}:
            raise ValueError(f"class statistics do not consist of {', '.join(map(str, state))}")
        if not all(isinstance(value, Tensor) for value in state.values()):
            raise ValueError("class statistics are tensors")
        if {*PARTS} & {*state}:
            if "covariances" in state:
                raise ValueError("class statistics have covariances twice")
            rest = {name: value for name, value in state.items() if name not in PARTS}
            state = {**rest, "covariances": _joined(*(state.get(name) for name in PARTS))}
        if state["means"].ndim != 2:
            raise ValueError("the means of class statistics have a row for each class")
        features = state["means"].shape[1]
        whole = {
            name: _whole(value, features) if name in MATRICES and value.ndim < 3 else value
            for name, value in state.items()
        }
        return cls(**{name: value.to(device) for name, value in whole.items()})


def form_for(form: Form, features: int) -> Form:
    """What is measured where that form is asked for: beyond a number of features, no covariance a class."""
    return "diagonal" if form == "own" and features > MOST_FEATURES else form


def describe(form: Form, features: int) -> str:
    return f"{FORMS[form]}, of {features} features"


def _symmetric(matrices: Tensor) -> Tensor:
    """But for rounding they are."""
    return (matrices + matrices.mT) / 2


def _half(matrices: Tensor) -> Tensor:
    rows, columns = torch.tril_indices(*matrices.shape[-2:])
    return matrices[..., rows, columns]


def _whole(halves: Tensor, size: int) -> Tensor:
    rows, columns = torch.tril_indices(size, size)
    if halves.shape[-1] != len(rows):
        raise ValueError(f"half a covariance of {size} features has {len(rows)} numbers, not {halves.shape[-1]}")
    matrices = halves.new_zeros(*halves.shape[:-1], size, size)
    matrices[..., rows, columns] = halves
    matrices[..., columns, rows] = halves
    return matrices


def _parted(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Diagonals, and the correlations below them in half precision."""
    variances = matrices.diagonal(dim1=-2, dim2=-1).clamp_min(0)
    deviations = variances.sqrt()
    size = matrices.shape[-1]
    rows, columns = torch.tril_indices(size, size, offset=-1)
    sizes = deviations[..., rows] * deviations[..., columns]
    correlations = torch.where(sizes > 0, matrices[..., rows, columns] / sizes, torch.zeros_like(sizes))
    return variances.contiguous(), correlations.clamp(-1, 1).half()


def _joined(variances: Tensor | None, correlations: Tensor | None) -> Tensor:
    parts = [part for part in (variances, correlations) if part is not None and part.ndim == 2]
    if variances is None or correlations is None or len(parts) < 2 or len(variances) != len(correlations):
        raise ValueError("covariances in parts are diagonals and correlations, a row for each class")
    size = variances.shape[1]
    rows, columns = torch.tril_indices(size, size, offset=-1)
    if correlations.shape[1] != len(rows):
        raise ValueError(f"{size} features have {len(rows)} correlations, not {correlations.shape[1]}")
    if float(correlations.abs().amax() if correlations.numel() else 0) > 1:
        raise ValueError("class statistics have correlations above one")
    deviations = variances.float().clamp_min(0).sqrt()
    if variances.numel() and not float(variances.amin()) >= 0:
        raise ValueError("class statistics have variances below zero")
    below = correlations.float() * deviations[:, rows] * deviations[:, columns]
    matrices = torch.diag_embed(variances.float())
    matrices[:, rows, columns] = below
    matrices[:, columns, rows] = below
    return matrices


def shrink(covariance: Tensor, images: int, least: float = 0.0) -> Tensor:
    """A covariance, or a diagonal of one, measured on so many images, drawn towards equal variance in all directions.

    The share is that of oracle approximating shrinkage (Chen et al., 2010), which needs nothing but these two. `least`
    of each variance is added where rounding may have taken away the inverse.
    """
    size = covariance.shape[-1]
    diagonal = covariance if covariance.ndim == 1 else covariance.diagonal()
    mean = diagonal.mean()
    if not float(mean) > 0:  # all images alike
        mean = torch.ones_like(mean)
        return mean.expand(size).clone() if covariance.ndim == 1 else torch.eye(size).to(covariance)
    if least:
        covariance = covariance + least * torch.diag(diagonal)
    squares, trace = (covariance**2).sum(), diagonal.sum()
    spread = (images + 1 - 2 / size) * (squares - trace**2 / size)
    share = ((1 - 2 / size) * squares + trace**2) / spread if float(spread) > 0 else torch.ones_like(mean)
    share = share.clamp(0, 1)
    target = mean.expand(size) if covariance.ndim == 1 else mean * torch.eye(size).to(covariance)
    return (1 - share) * covariance + (share + LEAST) * target


def _whitening(covariances: Tensor) -> tuple[Tensor, Tensor]:
    """What makes independent numbers of variance one of each, and the logarithm of the volume that each takes."""
    if covariances.ndim == 2:
        return covariances.rsqrt(), covariances.log().sum(dim=1) / 2
    lower = torch.linalg.cholesky(covariances)
    identity = torch.eye(covariances.shape[-1]).to(covariances).expand_as(lower)
    inverse = torch.linalg.solve_triangular(lower, identity, upper=False)
    return inverse, lower.diagonal(dim1=1, dim2=2).log().sum(dim=1)
