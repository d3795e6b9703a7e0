"""The scripts of the counters in Redis: one script call is one atomic step on one caller's keys.

Time is the server's own, in microseconds, so that the workers' clocks need not agree; a first argument other
than 0 replaces it. Needs Redis 5 (a script that reads the time may write).
"""

from typing import Final

from proxy.server.limits.rules import SLOTS

__all__ = ["RENEW", "SPEND", "TAKE"]

_COMMON: Final = """
local SLOTS = @SLOTS
local now = tonumber(ARGV[1])
if now == 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
end
local function text(number)
    return string.format('%.0f', number)
end
-- What is spent within the window: a hash from part of the window to sum, 's' the sum of all, 'o' the
-- oldest part.
local function spent(key, window)
    local slot = math.floor(now / (window / SLOTS))
    local known = redis.call('HMGET', key, 's', 'o')
    if not known[1] then
        return 0, slot, nil
    end
    local sum, oldest = tonumber(known[1]), tonumber(known[2])
    if oldest < slot - 2 * SLOTS then
        redis.call('DEL', key)
        return 0, slot, nil
    end
    local first = oldest
    while oldest < slot - SLOTS do
        local gone = redis.call('HGET', key, text(oldest))
        if gone then
            sum = sum - tonumber(gone)
            redis.call('HDEL', key, text(oldest))
        end
        oldest = oldest + 1
    end
    if oldest ~= first then
        redis.call('HSET', key, 's', text(sum), 'o', text(oldest))
    end
    return sum, slot, oldest
end
""".replace("@SLOTS", str(SLOTS))

TAKE: Final = (
    _COMMON
    + """
local hits, spending, streams = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lease, lease_for = ARGV[5], tonumber(ARGV[6])
local refused, longest = 0, -1
local answer, amounts, windows = {0, '0'}, {}, {}
for i = 1, hits + spending do
    amounts[i], windows[i] = tonumber(ARGV[5 + 2 * i]), tonumber(ARGV[6 + 2 * i])
end
for i = 1, hits do
    local key, amount, window = KEYS[i], amounts[i], windows[i]
    local count, swept = redis.call('LLEN', key), 0
    local oldest = count > 0 and tonumber(redis.call('LINDEX', key, -1))
    -- A bound on the work of one call; what is left over is swept by the next ones.
    while oldest and now - oldest > window and swept < 1000 do
        redis.call('RPOP', key)
        count, swept = count - 1, swept + 1
        oldest = count > 0 and tonumber(redis.call('LINDEX', key, -1))
    end
    local last = redis.call('LINDEX', key, amount - 1)
    if last and now - tonumber(last) <= window then
        local wait = tonumber(last) + window - now + 1
        if wait > longest then
            refused, longest = i, wait
        end
    end
    answer[1 + 2 * i] = math.max(amount - count, 0)
    answer[2 + 2 * i] = text(oldest and math.max(oldest + window - now, 0) or window)
end
for i = hits + 1, hits + spending do
    local key, amount, window = KEYS[i], amounts[i], windows[i]
    local width = window / SLOTS
    local sum, slot, oldest = spent(key, window)
    answer[1 + 2 * i] = text(math.max(amount - sum, 0))
    answer[2 + 2 * i] = text(oldest and (oldest + SLOTS + 1) * width - now or 0)
    if sum >= amount then
        local left, part = sum, oldest
        while left >= amount and part <= slot do
            left = left - tonumber(redis.call('HGET', key, text(part)) or 0)
            part = part + 1
        end
        local wait = (part + SLOTS) * width - now
        if wait > longest then
            refused, longest = i, wait
        end
    end
end
local places = KEYS[hits + spending + 1]
if streams >= 0 then
    redis.call('ZREMRANGEBYSCORE', places, '-inf', text(now))
    if redis.call('ZCARD', places) >= streams and longest < 1000000 then
        refused, longest = hits + spending + 1, 1000000
    end
end
if refused == 0 then
    for i = 1, hits do
        redis.call('LPUSH', KEYS[i], text(now))
        redis.call('LTRIM', KEYS[i], 0, amounts[i] - 1)
        redis.call('PEXPIRE', KEYS[i], text(windows[i] / 1000 + 1000))
        answer[1 + 2 * i] = math.max(answer[1 + 2 * i] - 1, 0)
    end
    if streams >= 0 then
        redis.call('ZADD', places, text(now + lease_for), lease)
        redis.call('PEXPIRE', places, text(2 * lease_for / 1000))
    end
end
answer[1] = refused
answer[2] = text(math.max(longest, 0))
return answer
"""
)
"""Arguments: ``now, hits, spending, streams (-1: no bound), lease, its microseconds``, then amount and window
of each limit. Returns ``refused (from 1, 0: taken), wait``, then left and reset of each limit."""

SPEND: Final = (
    _COMMON
    + """
for i, key in ipairs(KEYS) do
    local window, amount = tonumber(ARGV[2 * i]), ARGV[2 * i + 1]
    local sum, slot, oldest = spent(key, window)
    if not oldest or oldest > slot then
        redis.call('HSET', key, 'o', text(slot))
    end
    redis.call('HINCRBY', key, text(slot), amount)
    redis.call('HINCRBY', key, 's', amount)
    redis.call('PEXPIRE', key, text(window * (SLOTS + 2) / SLOTS / 1000))
end
return 1
"""
)
"""Arguments: ``now``, then window and amount for each key."""

RENEW: Final = (
    _COMMON
    + """
for i = 3, #ARGV do
    redis.call('ZADD', KEYS[1], 'XX', text(now + tonumber(ARGV[2])), ARGV[i])
end
redis.call('PEXPIRE', KEYS[1], text(2 * tonumber(ARGV[2]) / 1000))
return 1
"""
)
"""Arguments: ``now, microseconds``, then the leases of one caller to renew; one that was given back stays
free."""
