import gzip
import io
import os
import shutil
import tarfile
import zipfile

import probe

MIB = 1 << 20
MOST, LIMIT = 40, 1000


def unpack(attempt, judge):
    """Unpacks into an empty directory, and returns what `judge` makes of the answer."""
    shutil.rmtree("out", ignore_errors=True)
    os.mkdir("out")
    answer = "ok"
    try:
        attempt()
    except OSError as error:
        answer = probe.name_of(error.errno)
    return judge(answer)


def size(answer):
    total = sum(os.stat(os.path.join("out", name)).st_size for name in os.listdir("out"))
    return f"{answer} at the disk's size" if total <= 16 * MIB else f"{answer} at {total / MIB:.1f} MiB"


def count(answer):
    total = sum(len(directories) + len(files) for _, directories, files in os.walk("out"))
    return f"{answer} within the limit" if total <= LIMIT else f"{answer} after {total}"


zeros = bytes(MIB)
packed = io.BytesIO()
with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
    for _ in range(MOST):
        file.write(zeros)


def gunzip():
    packed.seek(0)
    with gzip.GzipFile(fileobj=packed) as source, open("out/file", "wb") as target:
        shutil.copyfileobj(source, target, MIB)


zipped = io.BytesIO()
with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
    for index in range(4):
        archive.writestr(f"{index}", zeros * 10)


def tar(members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for member in members:
            archive.addfile(member)
    packed.seek(0)
    return lambda: tarfile.open(fileobj=packed).extractall("out")


def directory(name):
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    return member


probe.say("gzip", unpack(gunzip, size))
probe.say("zip", unpack(lambda: zipfile.ZipFile(zipped).extractall("out"), size))
many = (tarfile.TarInfo(f"{index}") for index in range(1500))
probe.say("tar of many files", unpack(tar(many), count))
deep = (directory(f"{index % 300}/" + "d/" * (index // 300)) for index in range(1500))
probe.say("tar of deep directories", unpack(tar(deep), count))
shutil.rmtree("out")


def holes():
    """Creates a sparse file of a TiB, as tools do for such an archive member."""
    os.mkdir("out")
    os.truncate(os.open("out/holes", os.O_CREAT | os.O_RDWR, 0o600), 1 << 40)
    taken = os.stat("out/holes").st_blocks
    return "a length only" if taken == 0 else f"{taken} blocks"


probe.say("tar with holes", holes())
shutil.rmtree("out")
os.mkdir("out")
probe.say("afterwards", "ok")
