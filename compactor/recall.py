"""What a running session reads back: from its transcript, else from the history at hand."""

from pathlib import Path

from compactor.storage import Keys, StorageError

from .errors import UnknownHandle
from .messages import JsonObject
from .originals import original
from .render import Renderer
from .transcript import Transcript


class Recall:
    """Reads one session while it is written; not for several threads at once."""

    def __init__(self, place: tuple[Path, Keys], session: str) -> None:
        """Take where the session stands; nothing is opened."""
        self._place = place
        self._session = session
        self._transcript: Transcript | None = None

    def transcript(self) -> Transcript:
        """Return the session's transcript, opened once. Raises `StorageError`."""
        if self._transcript is None:
            root, keys = self._place
            self._transcript = Transcript.open(root, self._session, keys)
        return self._transcript

    def history(self) -> list[JsonObject]:
        """Return the history that the transcript holds. Raises `StorageError`."""
        root, keys = self._place
        with Transcript.open(root, self._session, keys) as transcript:
            return transcript.messages()

    def read(self, handle: str, renderer: Renderer) -> bytes:
        """Return the original behind a handle. Raises `UnknownHandle`, `StorageError`, `OSError`.

        The vault may be gone, or be replaced under the running session: then it is looked up in
        the history that the renderer knows, and the next call opens the vault anew.
        """
        try:
            return self.transcript().read(handle)
        except (StorageError, OSError, UnknownHandle):
            self.close()
            found = original(renderer, handle)
            if found is None:
                raise
            return found

    def close(self) -> None:
        """Close the transcript; another call opens it again."""
        transcript, self._transcript = self._transcript, None
        if transcript is not None:
            transcript.close()
