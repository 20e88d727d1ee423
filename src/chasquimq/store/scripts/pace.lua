-- Let rows pass at a rate that all writers of a run share.
-- KEYS     1 pace (string: when the next row may pass, ms of the server's clock)
-- ARGV     1 row_count   2 rows_per_s
-- RETURNS  how many ms to wait before these rows
-- SETTLES  many tasks: each waits behind all rows that were let pass before its own.
local row_count, rate = tonumber(ARGV[1]), tonumber(ARGV[2])
if not (row_count and row_count >= 1 and rate and rate > 0) then
  return redis.error_reply('ERR rows and their rate must be above 0')
end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
local next_ms = math.max(now_ms, tonumber(redis.call('GET', KEYS[1])) or 0)
local after_ms = next_ms + row_count * 1000 / rate
local ttl_ms = math.ceil(after_ms - now_ms) + 60000
redis.call('SET', KEYS[1], string.format('%.3f', after_ms), 'PX', string.format('%.0f', ttl_ms))
return math.ceil(next_ms - now_ms)
