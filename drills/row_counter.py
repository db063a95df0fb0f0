"""A writer of one table row over bare gRPC, each write of which is known. Standard library only."""

import contextlib
import time

import http2
from cluster import need
from served import Counter

TABLE = "counted"
# A call that takes longer may have been lost.
PATIENCE_S = 5.0


def make_table(cluster):
    """The table that all counters share."""
    cluster.atoll("table", "create", TABLE, "--column", "name:text", "--column", "number:int64", "--key", "name")


def zigzag(value):
    """A signed number as protobuf writes it."""
    return value << 1 if value >= 0 else (-value << 1) - 1


class RowCounter(Counter):
    """A client of tables that writes the numbers 1, 2, 3 ... into one row, each over the version that the one before it made: what was
    acknowledged and is lost, or was done twice or in another order, shows in the row."""

    TROUBLE = (OSError, ValueError, http2.Closed)

    def __init__(self, doors, name, every_s=0.0):
        super().__init__(doors, name, every_s)
        self.version = 0

    def _connect(self):
        if self.wire is None:
            self.turn += 1
            self.wire = http2.Http2(self.doors[self.turn % len(self.doors)], timeout=PATIENCE_S)

    def _drop(self):
        with contextlib.suppress(OSError, AttributeError):
            self.wire.close()
        self.wire = None
        time.sleep(0.01)

    def _put(self, number, expect):
        """Puts the row if it is as expected; its version, or None."""
        cells = [("name", http2.text(4, self.path)), ("number", http2.number(2, zigzag(number)))]
        named = b"".join(http2.text(1, http2.text(1, column) + http2.text(2, cell)) for column, cell in cells)
        operation = http2.text(1, TABLE) + http2.text(4, named + http2.text(3, expect))
        answer = self.wire.call("/atoll.v1.TableService/Transact", http2.text(2, operation))
        return dict(http2.fields(answer[0]))[1] if answer else None

    def _get(self):
        """(number, version) of the row; None if there is none, ConnectionError if nobody says."""
        key = http2.text(2, http2.text(1, http2.text(4, self.path)))
        answer = self.wire.call("/atoll.v1.TableService/Get", http2.text(1, TABLE) + key)
        if not answer:
            raise ConnectionError("refused")
        found = next(value for field, value in http2.fields(answer[0]) if field == 2)
        row = dict(http2.fields(found)).get(1)
        if row is None:
            return None
        version, cells = 0, []
        for field, value in http2.fields(row):
            version, cells = (value, cells) if field == 1 else (version, [*cells, value])
        number = dict(http2.fields(cells[1])).get(2, 0)
        return number >> 1, version

    def _create(self):
        # Refused if it is there already: by an attempt whose answer was lost.
        self._put(0, http2.number(1, 1))
        row = self._get()
        if row is None:
            return False
        self.version = row[1]
        return True

    def _write(self, number):
        version = self._put(number, http2.number(3, self.version))
        if version is None:
            # Refused for now, or because an earlier attempt was done after all: the row says which.
            raise ConnectionError("refused")
        self.version = version
        return True

    def _settle(self):
        self._connect()
        row = self._get()
        need(row is not None, f"the row {self.path} is gone")
        number, version = row
        need(number in (self.done, self.done + 1), f"the row {self.path}: {self.done} acknowledged, it has {number}")
        need((number == self.done) == (version == self.version), f"the row {self.path}: {number} has version {version}; {self.done} had {self.version}")
        self.version = version
        return number > self.done
