"""Every number that a user can run into, in one place (SEMANTICS: Limits)."""

NOTE_BYTES = 102_400  # the API's "100 kB"; also the largest text an agent reads in one go
NOTES_PER_STORE = 10_000
LIVE_SHARED_STORES = 1_000
ATTACHMENTS_PER_TASK = 8  # besides the worker's own store

SEGMENT_BYTES = 255  # NAME_MAX: a longer name could be made by API and never be listed by ls
PATH_BYTES = 1_024
PATH_SEGMENTS = 20

STORE_NAME_CHARS = 255
DESCRIPTION_CHARS = 1_024
METADATA_PAIRS = 16
METADATA_KEY_CHARS = 64
METADATA_VALUE_CHARS = 512
INSTRUCTIONS_CHARS = 4_096
WORKER_NAME_CHARS = 255
TASK_ID_CHARS = 64
TITLE_CHARS = 1_024  # of a session
ENVIRONMENT_ID_CHARS = 255

SCRATCH_FILE_BYTES = 16 * 2**20
SCRATCH_ATTACHMENT_BYTES = 64 * 2**20

SECRET_MIN_CHARS = 8  # a shorter one would be found in ordinary prose
SECRET_MAX_CHARS = 4_096

REFUSED_PER_STORE = 1_000  # refused texts kept; the oldest goes first

FUSE_DEADLINE_S = 30.0  # FUSE requests cannot be interrupted by a signal here
SCAN_BATCH = 512  # rows read in one read transaction by long scans
