"""Claims and marks in Redis: one string per key, which Redis itself removes when it expires.

What always holds: every call is one script, so it is atomic and takes one round trip. All keys of a name are in one
slot, so it works with Redis Cluster. The fence never falls behind the server's clock in microseconds, so it increases
even if Redis has lost its data. Mark and effect can't share a transaction here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.retry
from redis.backoff import ExponentialWithJitterBackoff

from tidelog.client.errors import ConfigError
from tidelog.client.processing.blocking import resolved
from tidelog.client.processing.claim_store import ClaimResult, ClaimState
from tidelog.client.processing.errors import ClaimStoreError

# A value is its state (c or d), the owner and the fence. Scripts return two numbers per key.
_CLAIM = """
local owner, lease_ms, partly = ARGV[1], ARGV[2], ARGV[3] == '1'
local answer, is_blocked = {}, false
for index = 2, #KEYS do
    local value = redis.call('GET', KEYS[index])
    local state, number = 0, 0
    if value then
        local kind, holder, fence = string.match(value, '^(%a):(%x+):(%d+)$')
        if kind == 'd' then
            state = 1
        elseif holder == owner then
            number = tonumber(fence)
        else
            state, number = 2, redis.call('PTTL', KEYS[index])
            is_blocked = true
        end
    end
    answer[2 * index - 3], answer[2 * index - 2] = state, number
end
if is_blocked and not partly then
    return answer
end
local time = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
local now = time[1] * 1000000 + time[2]
if last < now then
    last = now
end
for index = 2, #KEYS do
    if answer[2 * index - 3] == 0 then
        if answer[2 * index - 2] == 0 then
            last = last + 1
            answer[2 * index - 2] = last
        end
        local value = string.format('c:%s:%.0f', owner, answer[2 * index - 2])
        redis.call('SET', KEYS[index], value, 'PX', lease_ms)
    end
end
redis.call('SET', KEYS[1], string.format('%.0f', last))
return answer
"""

_COMPLETE = """
local answer = {}
for index = 1, #KEYS do
    local value = redis.call('GET', KEYS[index])
    local holder, fence = ARGV[1], '0'
    if value then
        holder, fence = string.match(value, '^%a:(%x+):(%d+)$')
    end
    if holder == ARGV[1] then
        redis.call('SET', KEYS[index], 'd:' .. ARGV[1] .. ':' .. fence, 'PX', ARGV[2])
        answer[index] = 1
    else
        answer[index] = 0
    end
end
return answer
"""

_EXTEND = """
local answer = {}
for index = 1, #KEYS do
    local value = redis.call('GET', KEYS[index])
    if value and string.match(value, '^c:(%x+):') == ARGV[1] then
        answer[index] = redis.call('PEXPIRE', KEYS[index], ARGV[2])
    else
        answer[index] = 0
    end
end
return answer
"""

_RELEASE = """
for index = 1, #KEYS do
    local value = redis.call('GET', KEYS[index])
    if value and string.match(value, '^c:(%x+):') == ARGV[1] then
        redis.call('DEL', KEYS[index])
    end
end
return 0
"""

_RETRIES = 5


class RedisClaims:
    """The store over a client of either kind; see `ClaimStore`."""

    def __init__(self, client: redis.Redis | redis.asyncio.Redis, name: str, *, is_own: bool) -> None:
        # The braces make Redis Cluster choose the slot by the name alone.
        self._prefix = f"tidelog:dedup:{{{name}}}:"
        self._fence_key = f"{self._prefix}fence".encode()
        self._client = client
        self._is_own = is_own
        self._claim = client.register_script(_CLAIM)
        self._complete = client.register_script(_COMPLETE)
        self._extend = client.register_script(_EXTEND)
        self._release = client.register_script(_RELEASE)

    async def claim(self, keys: Sequence[bytes], owner: str, lease_ms: int, *, partly: bool) -> list[ClaimResult]:
        names = [self._fence_key, *self._names(keys)]
        answer = await self._run(self._claim, names, [owner, lease_ms, int(partly)])
        return [
            ClaimResult(ClaimState.FIRST, fence=number)
            if code == ClaimState.FIRST
            else ClaimResult(ClaimState(code), busy_ms=max(0, number))
            for code, number in zip(answer[::2], answer[1::2], strict=True)
        ]

    async def complete(self, keys: Sequence[bytes], owner: str, expiry_ms: int) -> list[bool]:
        return [bool(code) for code in await self._run(self._complete, self._names(keys), [owner, expiry_ms])]

    async def extend(self, keys: Sequence[bytes], owner: str, lease_ms: int) -> list[bool]:
        return [bool(code) for code in await self._run(self._extend, self._names(keys), [owner, lease_ms])]

    async def release(self, keys: Sequence[bytes], owner: str) -> None:
        await self._run(self._release, self._names(keys), [owner])

    async def purge(self, limit: int, connection: object = None) -> int:
        return 0

    async def close(self) -> None:
        if self._is_own:
            if isinstance(self._client, redis.asyncio.Redis):
                await self._client.aclose()
            else:
                self._client.close()

    async def begin_marks(self, *_: Any, **__: Any) -> list[ClaimResult]:
        raise ConfigError("Redis can't be part of your transaction: connection= needs a deduplicator over SQL")

    async def end_marks(self, *_: Any, **__: Any) -> None:
        """There are no marks to remove."""

    def _names(self, keys: Sequence[bytes]) -> list[bytes]:
        prefix = f"{self._prefix}key:".encode()
        return [prefix + key for key in keys]

    async def _run(self, script: Any, names: list[bytes], values: list[str | int]) -> list[int]:
        try:
            return cast("list[int]", await resolved(script(keys=names, args=values)))
        except redis.RedisError as error:
            raise ClaimStoreError(
                f"Redis could not be reached: {error}; is it running, and is its address right?"
            ) from error


def open_redis(
    target: str | redis.Redis | redis.asyncio.Redis, name: str, timeout_s: float, *, is_async: bool
) -> RedisClaims:
    """The store at a URL, with its own connections, or over the caller's client."""
    if not isinstance(target, str):
        if type(target).__module__.startswith("redis.asyncio") != is_async:
            wanted = (
                "AsyncDeduplicator takes a client of redis.asyncio" if is_async else "Deduplicator takes redis.Redis"
            )
            raise ConfigError(f"{wanted}, not {type(target).__module__}.{type(target).__qualname__}")
        return RedisClaims(target, name, is_own=False)
    backoff = ExponentialWithJitterBackoff(cap=1, base=0.02)
    times: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    client: redis.Redis | redis.asyncio.Redis
    if is_async:
        client = redis.asyncio.Redis.from_url(target, retry=redis.asyncio.retry.Retry(backoff, _RETRIES), **times)
    else:
        client = redis.Redis.from_url(target, retry=redis.retry.Retry(backoff, _RETRIES), **times)
    return RedisClaims(client, name, is_own=True)
