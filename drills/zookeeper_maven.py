"""Java programs for drills: fetches their libraries from Maven Central, compiles and runs them. Needs a JDK and mvn."""

import pathlib
import shutil
import subprocess

from cluster import NotRun
from zookeeper_venv import cache, fetching, making

HERE = pathlib.Path(__file__).resolve().parent
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>drill</groupId><artifactId>drill</artifactId><version>1</version><dependencies>
%s
</dependencies></project>
"""
DEPENDENCY = "<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>"
# Small heaps; a compiler that takes little from the machine that is measured.
FLAGS = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def jars(name, *wanted):
    """The class path of libraries, each `group:artifact:version`, with all that they need; fetched once under this name."""
    if not all(shutil.which(tool) for tool in ("java", "javac", "mvn")):
        raise NotRun("java, javac and mvn are needed")
    folder = cache() / name
    pom = POM % "\n".join(DEPENDENCY % tuple(one.split(":")) for one in wanted)
    fetched = folder / "fetched"
    # All of them, since they share the repository of Maven.
    with making("maven"):
        if not fetched.is_file() or fetched.read_text() != pom:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "pom.xml").write_text(pom)
            fetching(["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"], cwd=folder)
            fetched.write_text(pom)
    return f"{folder}/lib/*"


def compiled(drill, lib, *sources):
    """The class path of the drill's own sources and these libraries."""
    classes = drill.folder / "classes"
    subprocess.run(["javac", "-cp", lib, "-d", classes, *[HERE / source for source in sources]], check=True)
    return f"{classes}:{lib}"


def command(path, name, *args, flags=()):
    """What runs a class."""
    return ["java", *FLAGS, *flags, "-cp", path, name, *[str(arg) for arg in args]]


def java(path, name, *args, timeout=400, **kwargs):
    """Runs a class to its end."""
    return subprocess.run(command(path, name, *args), capture_output=True, text=True, timeout=timeout, **kwargs)
