r"""A decoder under construction: matrices that still know their layers and the modules of the checkpoint.

A checkpoint names what it leaves unquantised by module (`model.layers.3.mlp.gate`), while an
`Architecture` holds matrices by kind with a count. The builder keeps both until the widths are known, then
merges: layers whose modules have equal widths become one `Matrix` with a count, and a fused projection
(q, k and v are read as one matrix) is split only where its parts differ.

Routed experts have one description for all layers; where a checkpoint quantises them in some layers only,
their mean width keeps the total exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from batchsim.specs.architecture import Architecture, Arithmetic, Attention, Experts, Matrix, Reading, Sharding, State

Layers = tuple[int, ...]


@dataclass(frozen=True)
class Width:
    """How a weight is stored and multiplied.

    Parameters
    ----------
    bits : float [bit]
        Per weight, scales included.
    arithmetic : {'bf16', 'fp8', 'fp4'}
    """

    bits: float = 16.0
    arithmetic: Arithmetic = "bf16"


PLAIN = Width()
Widths = Callable[[str], Width]
"""Width of a linear module by its path in the checkpoint."""


@dataclass(frozen=True)
class Part:
    """A projection of some layers, by the modules that the checkpoint stores it as.

    Parameters
    ----------
    name : str
    layers : tuple of int or None
        None outside of the layers.
    inputs : int
    modules : mapping from str to int
        Outputs of each module.
    sharding, reading : str
    kept : bool
        Never quantised: embeddings, heads, routers, gates.
    """

    name: str
    layers: Layers | None
    inputs: int
    modules: Mapping[str, int]
    sharding: Sharding
    reading: Reading = "token"
    kept: bool = False

    def path(self, module: str, layer: int) -> str:
        """Of a module in the checkpoint."""
        return module if self.layers is None else f"model.layers.{layer}.{module}"

    def matrices(self, widths: Widths) -> list[Matrix]:
        """One matrix per distinct width, layers counted."""
        found: Counter[tuple[Width, int]] = Counter()
        for layer in self.layers if self.layers is not None else (0,):
            outputs: Counter[Width] = Counter()
            for module, n in self.modules.items():
                outputs[PLAIN if self.kept else widths(self.path(module, layer))] += n
            found.update(outputs.items())
        return [
            Matrix(
                name=self.name,
                count=count,
                inputs=self.inputs,
                outputs=n,
                bits=width.bits,
                arithmetic=width.arithmetic,
                sharding=self.sharding,
                reading=self.reading,
            )
            for (width, n), count in found.items()
        ]

    def expert_matrix(self, widths: Widths) -> Matrix:
        """Of one expert, at the mean width over layers."""
        assert self.layers is not None
        found = [(widths(self.path(m, layer)), n) for layer in self.layers for m, n in self.modules.items()]
        weight = sum(n for _, n in found)
        bits = found[0][0].bits if len({w for w, _ in found}) == 1 else sum(w.bits * n for w, n in found) / weight
        common = Counter(w.arithmetic for w, _ in found).most_common(1)[0][0]
        outputs = sum(self.modules.values())
        return Matrix(
            name=self.name,
            count=1,
            inputs=self.inputs,
            outputs=outputs,
            bits=bits,
            arithmetic=common,
            sharding=self.sharding,
        )


@dataclass
class Builder:
    """Collects what a family's builder adds.

    Parameters
    ----------
    hidden, layers, vocab, context_max : int
    tied : bool
    """

    hidden: int
    layers: int
    vocab: int
    context_max: int
    tied: bool
    vectors: int = 0
    parts: list[Part] = field(default_factory=list)
    expert_parts: list[Part] = field(default_factory=list)
    routing: tuple[int, int] = (0, 0)
    expert_vectors: int = 0
    attention: list[Attention] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    @property
    def all_layers(self) -> Layers:
        """Indices of all layers."""
        return tuple(range(self.layers))

    def linear(
        self,
        name: str,
        layers: Layers | None,
        inputs: int,
        modules: Mapping[str, int],
        *,
        sharding: Sharding = "column",
        reading: Reading = "token",
        bias: bool = False,
        kept: bool = False,
    ) -> None:
        """Add a projection; nothing if no layer holds one."""
        if layers is None or layers:
            self.parts.append(Part(name, layers, inputs, modules, sharding, reading, kept))
            if bias:
                self.vectors += (1 if layers is None else len(layers)) * sum(modules.values())

    def expert(
        self, name: str, layers: Layers, inputs: int, modules: Mapping[str, int], *, sharding: Sharding, bias: bool
    ) -> None:
        """Add a projection of every routed expert."""
        if layers:
            self.expert_parts.append(Part(name, layers, inputs, modules, sharding))
            self.expert_vectors += sum(modules.values()) if bias else 0

    def norms(self, layers: Layers, *widths: int) -> None:
        """Add vectors that each of some layers holds."""
        self.vectors += len(layers) * sum(widths)

    def attend(self, attention: Attention) -> None:
        """Add cached layers; equal ones are merged."""
        for i, known in enumerate(self.attention):
            if replace(known, count=attention.count) == attention:
                self.attention[i] = replace(known, count=known.count + attention.count)
                return
        if attention.count:
            self.attention.append(attention)

    def finish(self, *, name: str, family: str, precision: str, source: str, widths: Widths) -> Architecture:
        """Architecture at the widths of the checkpoint."""
        matrices = _merged(m for part in self.parts for m in part.matrices(widths))
        experts = None
        if self.expert_parts:
            layers = self.expert_parts[0].layers
            assert layers is not None
            experts = Experts(
                layers=len(layers),
                experts=self.routing[0],
                per_token=self.routing[1],
                matrices=tuple(p.expert_matrix(widths) for p in self.expert_parts),
                vectors=self.expert_vectors,
            )
        return Architecture(
            name=name,
            family=family,
            precision=precision,
            layers=self.layers,
            hidden=self.hidden,
            vocab=self.vocab,
            context_max=self.context_max,
            matrices=tuple(matrices),
            experts=experts,
            attention=tuple(self.attention),
            states=tuple(s for s in self.states if s.count),
            vectors=self.vectors,
            tied=self.tied,
            source=source,
        )


def _merged(matrices: Iterable[Matrix]) -> list[Matrix]:
    """Matrices that differ in their count alone, as one."""
    counts: Counter[Matrix] = Counter()
    for m in matrices:
        counts[replace(m, count=1)] += m.count
    return [replace(m, count=count) for m, count in counts.items()]


def layers_of(kinds: Sequence[str], *kind: str) -> Layers:
    """Indices of the layers of some kinds."""
    return tuple(i for i, k in enumerate(kinds) if k in kind)
