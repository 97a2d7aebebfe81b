"""The shape of the package: who may import whom, one place that chooses solvers, functions one can read; and errors."""

import ast
import importlib
import inspect
import json
import re
import textwrap
from pathlib import Path

import pytest

import llsvm
from llsvm import core

PACKAGE = Path(llsvm.__file__).parent
KERNELS = sorted((PACKAGE.parent / "cython_src").glob("*.pyx"))
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
EVERY_MODULE = pytest.mark.parametrize("module", MODULES)
# A module imports from the lines above its own alone; of a package within one line, the table may import its rows.
LEVELS = [
    {"__init__"},
    {"core", "arrays", "pool", "process"},
    {"problem"},
    {"memory", "files", "frames", "foreign"},
    {"compression", "model_facts"},
    {"sources", "scratch", "manifest"},
    {"lines"},
    {"text", "features", "blockset", "writer", "model", "alphas", "report", "kernels"},
    {"reader", "evaluate", "split", "cholesky"},
    {"prefetch"},
    {"active", "stream", "kernel_model", "lowrank"},
    {"predict", "exact_gap", "describe", "shared", "folds"},
    {"solvers"},
    {"options"},
    {"data", "words"},
    {"train"},
    {"kernel_machine", "search"},
    {"session"},
    {"selection"},
    {"cli"},
]
SOLVER_LEVELS = [
    {"together", "newton", "sample", "lists", "interior", "machines", "growing_bias"},
    {"copies", "parts", "marks"},
    {"team"},
    {"dual_cd"},
    {"one_vs_rest", "learners", "layout"},
    {"visitor"},
    {"streaming", "between_passes"},
    {"blocks", "collected"},
    {"from_disk", "resident", "shrink", "primal", "ball", "multiclass"},
    {"solvers"},
]
# Whose products of matrices are the work: the bits of kernel machines depend on the processor (docs/kernel.md).
BY_BLAS = {"cholesky", "kernel_machine", "solvers.interior"}
LONGEST_FUNCTION, LONGEST_MODULE, MOST_ARGUMENTS, MOST_NAMES = 60, 350, 12, 30
# Classes with more names than that, and how many at most: these are to have fewer. A Config has one name an option.
WIDE = {"options.Config": 60, "stream.TextStream": 39, "stream.SetStream": 32, "solvers.one_vs_rest.OneVsRest": 32,
        "solvers.shrink.HarshShrinking": 42, "solvers.primal.Pegasos": 40, "solvers.ball.StreamSVM": 35,
        "solvers.multiclass.Direct": 31, "solvers.multiclass.InMemory": 34, "solvers.multiclass.WestonWatkins": 34,
        "solvers.multiclass.Streaming": 37, "solvers.multiclass.WestonWatkinsStreaming": 37}  # fmt: skip


def level(module):
    """The line of a module, or of the package it is in."""
    found = [number for number, names in enumerate(LEVELS) if module.split(".")[0] in names]
    assert len(found) == 1, f"{module} has no place in the order of the modules"
    return found[0]


def tree(module):
    return ast.parse(MODULES[module].read_text())


def imports(module):
    """Modules of this package that a module names in an import, anywhere in it; `__init__` is the package itself."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "llsvm":
                yield resolve(parts[1:])


def resolve(parts):
    """The module among llsvm.a.b.c: the longest beginning that is one, compiled ones included."""
    if parts and is_compiled(parts[0]):
        return parts[0]
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in MODULES:
            return ".".join(parts[:end])
    return "__init__"


def is_compiled(name):
    return any(path.stem == name for path in KERNELS)


def test_the_modules_are_found():
    assert {"core", "train", "solvers", "solvers.dual_cd", "cli"} <= set(MODULES)
    assert {"_text", "_dual_cd"} <= {path.stem for path in KERNELS}
    assert {"_dual_cd", "reader", "core"} <= set(imports("solvers.dual_cd"))
    assert {"evaluate", "alphas", "solvers.dual_cd"} <= set(imports("solvers.visitor"))


@EVERY_MODULE
def test_imports_go_downward_only(module):
    above = {
        name for name in imports(module)
        if not is_compiled(name) and level(name) >= level(module) and name.split(".")[0] != module.split(".")[0]
    }  # fmt: skip
    assert not above


def solver_level(module):
    name = module.removeprefix("solvers.")
    found = [number for number, names in enumerate(SOLVER_LEVELS) if name in names]
    assert len(found) == 1, f"{module} has no place in the order of the solvers"
    return found[0]


@pytest.mark.parametrize("module", [name for name in MODULES if name.split(".")[0] == "solvers"])
def test_imports_among_solvers_go_downward_only(module):
    above = {name for name in imports(module)
             if name.split(".")[0] == "solvers" and name != "solvers" and solver_level(name) >= solver_level(module)}
    assert not above


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_no_kernel_takes_more_arguments_than_one_can_read(path):
    for name, arguments in re.findall(r"^def (\w+)\(([^)]*)\)", path.read_text(), re.MULTILINE):
        count = len([one for one in re.sub(r"\[[^\]]*\]", "", arguments).split(",") if one.strip()])
        assert count <= MOST_ARGUMENTS, f"{name} has {count}"


def test_imports_within_a_package_go_one_way():
    pairs = {(module, name) for module in MODULES for name in imports(module)}
    assert not {(module, name) for module, name in pairs if (name, module) in pairs}


@EVERY_MODULE
def test_a_compiled_module_is_imported_by_its_namesake_alone(module):
    allowed = {"_" + module.split(".")[-1]}
    if module == "solvers.together":  # ends by one thread's sweep what several have begun
        allowed.add("_dual_cd")
    assert {name for name in imports(module) if is_compiled(name)} <= allowed


@pytest.mark.parametrize("kernel", [path.stem for path in KERNELS])
def test_a_compiled_module_has_a_namesake_that_imports_it(kernel):
    assert any(kernel in imports(module) for module in MODULES if f"_{module.split('.')[-1]}" == kernel)


@EVERY_MODULE
def test_solvers_are_chosen_in_the_table_alone(module):
    assert "solver ==" not in MODULES[module].read_text()


@EVERY_MODULE
def test_functions_are_short(module):
    functions = [node for node in ast.walk(tree(module)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    lengths = {function.name: function.end_lineno - function.lineno + 1 for function in functions}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}


@EVERY_MODULE
def test_modules_are_short(module):
    assert len(MODULES[module].read_text().splitlines()) <= LONGEST_MODULE


def names_on_self(kind):
    """Methods and attributes, own and inherited; no constants."""
    names = set()
    for owner in (owner for owner in kind.__mro__ if owner.__module__.startswith("llsvm")):
        names |= set(vars(owner))
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(owner)))):
            is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            names |= {node.attr} if is_set and ast.unparse(node.value) == "self" else set()
    return {name for name in names if not name.startswith(("__", "_abc")) and not name.isupper()}


@EVERY_MODULE
def test_objects_have_few_names(module):
    found = importlib.import_module(f"llsvm.{module}".removesuffix(".__init__"))
    kinds = {f"{module}.{name}": kind for name, kind in vars(found).items()
             if inspect.isclass(kind) and kind.__module__ == found.__name__ and kind.__name__ == name}  # fmt: skip
    counts = {name: len(names_on_self(kind)) for name, kind in kinds.items()}
    assert {name: count for name, count in counts.items() if count > WIDE.get(name, MOST_NAMES)} == {}


@EVERY_MODULE
def test_a_module_says_what_it_is(module):
    assert ast.get_docstring(tree(module))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda path: path.stem)
def test_a_kernel_says_what_it_is(kernel):
    assert kernel.read_text().startswith('"""')


@pytest.mark.parametrize("error, code", [
    (core.LlsvmError, 1), (core.DataError, 1), (core.UsageError, 2), (core.Interrupted, 130),
])  # fmt: skip
def test_an_error_has_a_message_a_hint_and_an_exit_code(error, code):
    raised = error("what is wrong", "what to do")
    assert isinstance(raised, core.LlsvmError)
    assert (str(raised), raised.message, raised.hint, raised.exit_code) == (*["what is wrong"] * 2, "what to do", code)


@pytest.mark.parametrize("primal, dual, gap, relative", [
    (2.0, 1.5, 0.5, 0.25),
    (2.0, 2.0 + 1e-15, 0.0, 0.0),
    (0.0, 0.0, 0.0, 0.0),
    (2.0, float("nan"), float("inf"), float("inf")),
    (2.0, 2.1, float("inf"), float("inf")),
])  # fmt: skip
def test_a_certificate_knows_its_gap(primal, dual, gap, relative):
    certificate = core.Certificate(primal, dual)
    assert (certificate.gap, certificate.relative_gap) == (gap, relative)


def test_statistics_can_be_written_as_json():
    stats = core.PassStats(3, visits=10, certified=True, primal=2.0, dual=1.0, gap=0.5)
    assert json.loads(json.dumps(stats.as_dict())) == {**stats.as_dict()}
    assert stats.as_dict()["number"] == 3


@pytest.mark.parametrize("module", [name for name in MODULES if name not in BY_BLAS])
def test_no_sum_is_added_in_the_order_that_suits_the_processor(module):
    """As BLAS does, which NumPy calls for these."""
    for node in ast.walk(tree(module)):
        assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)), node.lineno
        assert not (isinstance(node, ast.Attribute) and node.attr in ("vdot", "einsum", "matmul", "linalg"))
        assert not (isinstance(node, ast.Attribute) and node.attr == "dot" and getattr(node.value, "id", "") == "np")


@pytest.mark.parametrize(("text", "shown"), [
    ("plain", "plain"), (b"caf\xc3\xa9", "café"), (b"caf\xe9", "caf\\xe9"), ("\udce9", "\\xe9"),
    (b"\x00\x1b[31m\n", "\\x00\\x1b[31m\\n"), ("a\u202eb", "a\\u202eb"),
    ("x" * 60, "x" * 60), (b"x" * 61, "x" * 57 + "..."),
    (b"\0" * 1_000_000, "\\x00" * 14 + "\\..."),
])  # fmt: skip
def test_what_is_quoted_from_a_file_is_escaped_and_cut(text, shown):
    assert core.quoted(text) == shown
    assert len(core.quoted(text)) <= 60


@pytest.mark.parametrize("name", [
    "1", "-1", "spam", "grün", "١", "1²", "a=b;c", "nano", "info", "inf-1", "x" * 256, "ü" * 128, "👩\u200d🔬",
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "?", '"quoted"', "1e400",
])  # fmt: skip
def test_a_label_is_a_word_that_can_be_seen(name):
    assert core.label_fault(name) is None


@pytest.mark.parametrize(("name", "words"), [
    ("\udce9t\udce9", "UTF-8"), ("", "1 to 256 bytes"), ("x" * 257, "1 to 256 bytes"), ("ü" * 129, "1 to 256 bytes"),
    ("\x00", "control"), ("a\x1b[31m", "control"), ("a\x7f", "control"), ("a\x85b", "control"), ("a b", "blanks"),
    ("a\u00a0b", "blanks"), ("a\u2028", "control"), ("a\u202eb", "control"), ("a\u2067b", "control"),
    ("a\tb", "blanks"), ("\ufeff1", "control"), ("1\u200b", "control"), ("1\u00ad", "control"),
    *((name, "nan and inf") for name in ("nan", "NaN", "-nan", "inf", "+Inf", "-INF", "infinity", "-Infinity")),
])  # fmt: skip
def test_what_is_no_label_is_told_from_one(name, words):
    assert words in core.label_fault(name)
