import subprocess
import sys

import pytest
import typer

from policy_store.learn.extras import needed

TIDEGATE = "from gateway.cli import main; main()"
OUTPUT_LENGTH = "import runpy; runpy.run_module('policy_store.learn.output_length', run_name='__main__')"


@pytest.mark.parametrize(
    ("program", "arguments", "module", "told"),
    [
        (TIDEGATE, "learn paths", "sklearn", "needs scikit-learn: pip install '.[loadtest,learn]'"),
        (TIDEGATE, "learn paths", "joblib", "needs joblib: pip install '.[loadtest,learn]'"),
        (TIDEGATE, "compare --preset bounds", "scipy", "needs SciPy: pip install '.[loadtest,learn]'"),
        (TIDEGATE, "experiment none --out none", "joblib", "needs joblib: pip install '.[loadtest]'"),
        (OUTPUT_LENGTH, "--data none", "sklearn", "needs scikit-learn: pip install '.[learn]'"),
    ],
)
def test_a_command_without_its_extra_says_what_to_install(program: str, arguments: str, module: str, told: str) -> None:
    # A module that is None in sys.modules cannot be imported, as if it were not installed.
    code = f"import sys; sys.modules['{module}'] = None; sys.argv[0] = 'tidegate'; {program}"
    done = subprocess.run([sys.executable, "-c", code, *arguments.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert told in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_an_import_error_of_our_own_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), needed("learning", extras="learn"):
        raise ModuleNotFoundError("no_such_module", name="policy_store.no_such_module")


def test_what_is_named_is_the_library_and_not_its_part() -> None:
    with pytest.raises(typer.BadParameter, match="learning needs SciPy"), needed("learning", extras="learn"):
        raise ModuleNotFoundError("no scipy", name="scipy.sparse")
