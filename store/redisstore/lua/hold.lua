-- Makes ids ephemeral and holds them. The arguments after those of lib.lua: the server that holds, the number of the
-- hold, see isMade, or '' to check only the maximum, the nanoseconds after which the conversations are deleted if it ends
-- without a release, the maximum number of ephemeral ids of the tenant in the bucket, and the ids. Returns 'made' and
-- changes nothing if it was made before, 'many' if the tenant would have more; else 'done', the place of the change, see
-- tell, 0 if nothing was removed, and what it removed.
local server, number, after, limit = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
if number ~= '' and isMade(server, number) then return { 'made' } end
local active = call('HLEN', EPHEMERAL)
for _, id in ipairs(call('ZRANGEBYSCORE', BY_DELETE_TIME, '-inf', micros(now))) do
  local state = call('HGET', EPHEMERAL, id)
  if state and not isHeld(state) and state <= now then active = active - 1 end
end
local states = {}
for i = 8, #ARGV do
  local state = call('HGET', EPHEMERAL, ARGV[i])
  states[i] = state
  if not state or not isHeld(state) and state <= now then active = active + 1 end
end
if active > limit then return { 'many' } end
if number == '' then return { 'done', 0, removed } end
setMade(server, number)

local holds = P .. 'ho:' .. server
for i = 8, #ARGV do
  local id, state, n, mine = ARGV[i], states[i], 1, 0
  local s = conversation(id)
  local why = s and ended(s)
  if why then
    remove(s, why)
    s = nil
  end
  if isHeld(state) then
    n = tonumber(string.sub(state, 2)) + 1
    mine = tonumber(string.match(call('HGET', holds, T .. id) or '0', '^%d+'))
  elseif state then
    call('ZREM', BY_DELETE_TIME, id)
  end
  call('HSET', EPHEMERAL, id, 'h' .. n)
  call('HSET', holds, T .. id, mine + 1 .. ' ' .. after)
  if s then
    call('HSET', P .. 'c:' .. T .. id, 'e', 'h' .. n)
    call('ZREM', BY_END, id)
    call('ZREM', EVICTABLE, s.place)
  end
end
call('SADD', P .. 'hs', server)
if #removed == 0 then return { 'done', 0, removed } end
listTenant()
return { 'done', tell(server, '', {}), removed }
