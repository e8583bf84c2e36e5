-- Takes or renews the lease of a server in a bucket, and removes those that ended a day ago. The arguments: the prefix of
-- the bucket's keys, the server, its entry, and the milliseconds that the lease lasts, by the clock of the engine.
-- Returns 1 if the server had a lease, 0 if it had none or that had ended.
local moving = redis.pcall('EXISTS', ARGV[1] .. '?', ARGV[1] .. '??') -- See lib.lua.
if type(moving) == 'table' and moving.err then return redis.error_reply('TRYAGAIN the slot is moving') end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, server in ipairs(redis.call('ZRANGEBYSCORE', ARGV[1] .. 'ls', '-inf', now - 86400000)) do
  redis.call('ZREM', ARGV[1] .. 'ls', server)
  redis.call('HDEL', ARGV[1] .. 'la', server)
  redis.call('UNLINK', ARGV[1] .. 'hc:' .. server)
end
local before = redis.call('ZSCORE', ARGV[1] .. 'ls', ARGV[2])
redis.call('ZADD', ARGV[1] .. 'ls', now + ARGV[4], ARGV[2])
redis.call('HSET', ARGV[1] .. 'la', ARGV[2], ARGV[3])
return before and tonumber(before) > now and 1 or 0
