"""What is in etcd has a format, and a version of Orrery reads one: a volume of another is refused before anything is written.

The key `/orrery/format` holds the number. A store without it is empty, or was filled before there was one, which is the
same format; then it is written.
"""

from apiserver.core.keys import FORMAT
from apiserver.store.protocol import Compare, Member, Put, Relation, Store, StoreError, Target
from services.model.clock import Clock
from services.runtime.logging import Logger

STORAGE_FORMAT = 1
RETRY_SECONDS = 0.5
SAY_EVERY = 10


async def check_format(store: Store, clock: Clock, log: Logger) -> None:
    """Returns once the store is known to be of our format; waits for it while it does not answer.

    Raises:
        OSError: it is of another.
    """
    tries = 0
    while True:
        try:
            record = await store.get(FORMAT)
            if record is None:
                absent = Compare(FORMAT, Target.CREATE_REVISION, Relation.EQUAL, 0)
                await store.txn((Member((absent,), (Put(FORMAT, str(STORAGE_FORMAT).encode()),), ()),))
                record = await store.get(FORMAT)
        except StoreError as error:
            if tries % SAY_EVERY == 0:
                log.warning("store_unavailable", reason=str(error))
            tries += 1
            await clock.sleep(RETRY_SECONDS)
            continue
        found = record.value.decode(errors="replace") if record is not None else ""
        if found != str(STORAGE_FORMAT):
            raise OSError(
                f"etcd holds data of storage format {found!r}, and this version of Orrery reads {STORAGE_FORMAT}: run "
                "the version that wrote it, or remove the data (orrery down --purge, docker compose down --volumes)"
            )
        return
