"""A CSV file names images and their classes: read as the folders would be, and its mistakes are told at once."""

import pytest

from reverie.data.folder import read_folder
from reverie.data.inputs import as_inputs
from reverie.data.listed import files_by_label, listed_files
from reverie.errors import UserError


@pytest.fixture
def table(photos):
    """What is in `photos`, in a list beside it."""
    files = sorted(photos.rglob("*.*g"))
    lines = [f"photos/{file.relative_to(photos)},{file.parent.name}" for file in files]
    (photos.parent / "photos.csv").write_text("path,label\n" + "\n".join(reversed(lines)) + "\n")
    return photos.parent / "photos.csv"


def test_a_list_is_the_same_data_as_the_folder(photos, table):
    assert read_folder(table, size=16).fingerprint() == read_folder(photos, size=16).fingerprint()
    inputs = as_inputs(table)
    assert (inputs.names, inputs.source, inputs.look()) == (("apple", "banana", "cherry"), "photos.csv", (20, True))


def test_columns_in_any_order_semicolons_and_the_mark_of_a_spreadsheet(photos, table):
    plain = files_by_label(table)
    lines = [line.split(",") for line in table.read_text().splitlines()]
    table.write_text("\ufeffLabel ;x; Path\n\n" + "\n".join(f"{label};;{path}" for path, label in lines[1:]))
    assert files_by_label(table) == plain
    assert listed_files(table)[0].name == "9.png"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"has no column 'path'.*here it is ''"),
        ("file,label\na.png,x\n", r"has no column 'path'\. Its first line names the columns, .* 'file,label'"),
        ("path,class\na.png,x\n", r"has no column 'label'"),
        ("path,label\n\n", r"names no files"),
        ("path,label\nphotos/apple/1.png,\n", r"Line 2 of .* has no label"),
        ("path,label\nphotos/apple/1.png\n", r"Line 2 of .* has no label"),
        ("path,label\nno.png,x\n", r"There is no file or folder .*no\.png, that .* names"),
        (
            "path,label\nphotos/apple/1.png,x\n" + "".join(f"no{n}.png,x\n" for n in range(5)),
            r"5 of 6 files that .*list\.csv names are missing: .*no0\.png, .*no1\.png, .*no2\.png and 2 more",
        ),
        (
            "path,label\nphotos/apple/1.png,x\nphotos/apple/1.png,y\n",
            r"gives 1 file more than one label: .*1\.png \('x', 'y'\)",
        ),
    ],
)
def test_mistakes_in_a_list_are_told(photos, text, says):
    file = photos.parent / "list.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=says):
        files_by_label(file)


def test_a_list_that_is_no_text_or_not_there_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"path,label\n\xff\xfe,x")
    with pytest.raises(UserError, match="is not text in UTF-8"):
        files_by_label(tmp_path / "a.csv")
    with pytest.raises(UserError, match=r"There is no file .*b\.csv"):
        files_by_label(tmp_path / "b.csv")


def test_a_file_named_twice_alike_counts_once(photos, table):
    before = files_by_label(table)
    table.write_text(table.read_text() + table.read_text().splitlines()[1] + "\n")
    assert files_by_label(table) == before
