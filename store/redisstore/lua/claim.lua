-- Takes the lease of a server in a bucket, unless it must not run beside a server that has one. Then it returns that
-- server and its entry. The arguments: the prefix of the bucket's keys, the server, its key, its address, the
-- milliseconds that the lease lasts, by the clock of the engine, and exclusive or shared.
local moving = redis.pcall('EXISTS', ARGV[1] .. '?', ARGV[1] .. '??') -- See lib.lua.
if type(moving) == 'table' and moving.err then return redis.error_reply('TRYAGAIN the slot is moving') end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, other in ipairs(redis.call('ZRANGEBYSCORE', ARGV[1] .. 'ls', now + 1, '+inf')) do
  local entry = redis.call('HGET', ARGV[1] .. 'la', other) or ''
  local key, address = string.match(entry, '^(%S*) ?(.*)$')
  local forbids = ARGV[6] == 'exclusive' or key == '-' or address ~= '' and address == ARGV[4]
  if other ~= ARGV[2] and forbids then
    return { other, entry }
  end
end
redis.call('ZADD', ARGV[1] .. 'ls', now + ARGV[5], ARGV[2])
redis.call('HSET', ARGV[1] .. 'la', ARGV[2], ARGV[3] .. ' ' .. ARGV[4])
return {}
