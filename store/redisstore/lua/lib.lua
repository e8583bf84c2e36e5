-- What all scripts share. ARGV begins with the prefix of the bucket's keys, the tenant as it is part of keys, and the
-- time of the call in nanoseconds, as 19 digits: doubles hold no nanoseconds, but texts of one length can be compared.
local P, T, now = ARGV[1], ARGV[2], ARGV[3]
local call = redis.call
local TENANT, TOTAL = P .. 't:' .. T, P .. 'st'
local BY_TIME, EVICTABLE = P .. 'ix:' .. T, P .. 'ev:' .. T
local BY_END, BY_DELETE_TIME, EPHEMERAL = P .. 'ex:' .. T, P .. 'ed:' .. T, P .. 'em:' .. T

-- While the bucket's slot moves to another node, each node has some of its keys. A script that meets one which is not
-- there ends, and what it has changed before stays. Two keys that do not exist show it before anything is changed.
do
  local r = redis.pcall('EXISTS', P .. '?', P .. '??')
  if type(r) == 'table' and r.err then return redis.error_reply('TRYAGAIN the slot is moving') end
end

-- What the script has removed, in order: id, uid, version, messages, end, why.
local removed = {}

-- micros returns the score of a time in the indexes by end.
local function micros(time) return string.sub(time, 1, -4) end

-- count adds to a count of the tenant and of the bucket.
local function count(field, delta)
  if delta ~= 0 then
    local text = string.format('%.0f', delta)
    call('HINCRBY', TENANT, field, text)
    call('HINCRBY', TOTAL, field, text)
  end
end

-- listTenant puts the tenant into the list of tenants, or removes it if it has neither conversations nor records. Then
-- nothing of it is counted, also if damage has left something.
local function listTenant()
  local f = call('HMGET', TENANT, 'n', 'm', 'b', 'r', 'y', 'rev')
  if (tonumber(f[1]) or 0) <= 0 and call('EXISTS', BY_TIME, P .. 'tks:' .. T) == 0 then
    for i, field in ipairs({ 'n', 'm', 'b', 'r', 'y' }) do count(field, -(tonumber(f[i]) or 0)) end
    f[4] = '0'
    if not f[6] then call('UNLINK', TENANT) end -- Revisions must not be used again.
  end
  if (tonumber(f[1]) or 0) > 0 or (tonumber(f[4]) or 0) > 0 then
    call('ZADD', P .. 'tn', 0, T)
  else
    call('ZREM', P .. 'tn', T)
  end
end

-- summary returns the parts of the summary of a conversation. Those of a damaged one are zero, so that it can be removed.
local function summary(s)
  local uid, version, messages, bytes, ends, running, evictable, records, recordBytes =
    string.match(s or '', '^(%S*) (%d+) (%d+) (%d+) (%d+) (%d) (%d) (%d+) (%d+)$')
  if not uid then
    return { uid = '', version = '0', messages = '0', bytes = 0, ends = now, running = false, evictable = true, records = 0, recordBytes = 0 }
  end
  return {
    uid = uid, version = version, messages = messages, bytes = tonumber(bytes), ends = ends, running = running == '1',
    evictable = evictable == '1', records = tonumber(records), recordBytes = tonumber(recordBytes),
  }
end

-- conversation returns the summary of a conversation, with its place and its ephemeral state; nil if there is none. The
-- state is not that of the conversation, which may be damaged.
local function conversation(id)
  local f = call('HMGET', P .. 'c:' .. T .. id, 's', 'k', 'e', 'v')
  if not f[2] and not f[4] then return nil end
  local s = summary(f[1])
  s.id, s.place, s.ephemeral = id, (f[2] or '') .. id, f[3] and call('HGET', EPHEMERAL, id)
  return s
end

local function isHeld(ephemeral) return ephemeral and string.sub(ephemeral, 1, 1) == 'h' end

-- ended returns why a conversation has ended: 'expired', or 'ephemeral'; nil if it has not.
local function ended(s)
  if s.ephemeral then
    return not isHeld(s.ephemeral) and s.ephemeral <= now and 'ephemeral' or nil
  end
  return not s.running and s.ends <= now and 'expired' or nil
end

-- forgetTurns removes the turns of a conversation from the index of the tenant.
local function forgetTurns(id)
  local own = P .. 'tl:' .. T .. id
  while true do
    local ids = call('SPOP', own, 1000)
    if #ids == 0 then return end
    call('ZREM', P .. 'ti:' .. T, unpack(ids))
  end
end

-- forgetRunning removes the running turn of a conversation from the indexes of running turns.
local function forgetRunning(id)
  local of = call('HGET', P .. 'rt', T .. id)
  if of then
    call('HDEL', P .. 'rt', T .. id)
    call('ZREM', P .. 'rl', T .. id)
    call('ZREM', P .. 'tr:' .. T, string.sub(of, 17, 32) .. id)
    call('UNLINK', P .. 'p:' .. T .. id)
  end
end

-- forget removes what a conversation has beside its place.
local function forget(id)
  local name = T .. id
  call('UNLINK', P .. 'c:' .. name, P .. 'm:' .. name, P .. 'k:' .. name, P .. 'kx:' .. name, P .. 'ks:' .. name,
    P .. 'tc:' .. name, P .. 'p:' .. name)
  call('ZREM', BY_END, id)
  call('ZREM', BY_DELETE_TIME, id)
  forgetRunning(id)
  forgetTurns(id)
end

-- forgetPlaces removes all places of a conversation whose key or place was damaged, and returns their number. It reads
-- the whole index of the tenant.
local function forgetPlaces(id)
  local first, found = 0, 0
  while true do
    local places = call('ZRANGE', BY_TIME, first, first + 999)
    if #places == 0 then return found end
    first = first + #places
    for _, place in ipairs(places) do
      if string.sub(place, 13) == id then
        call('ZREM', BY_TIME, place)
        call('ZREM', EVICTABLE, place)
        first, found = first - 1, found + 1
      end
    end
  end
end

-- remove removes a conversation. Its id becomes an ordinary one, unless it is held. why is nil if the caller reports
-- the removal itself.
local function remove(s, why)
  local id = s.id
  forget(id)
  if call('ZREM', BY_TIME, s.place) == 0 then forgetPlaces(id) end
  call('ZREM', EVICTABLE, s.place)
  if s.ephemeral and not isHeld(s.ephemeral) then call('HDEL', EPHEMERAL, id) end
  count('n', -1)
  count('m', -tonumber(s.messages))
  count('b', -s.bytes - s.recordBytes)
  count('r', -s.records)
  count('y', -s.recordBytes)
  if why then
    removed[#removed + 1] = { id, s.uid, s.version, s.messages, s.ends, why }
  end
end

-- removeLost removes what is left of a conversation whose key is lost. Its messages stay counted.
local function removeLost(id)
  local state = call('HGET', EPHEMERAL, id)
  if state and not isHeld(state) then call('HDEL', EPHEMERAL, id) end
  forget(id)
  count('n', -forgetPlaces(id))
end

-- addEnded adds conversations of the tenant that have ended to a list, each with why, up to n altogether.
local function addEnded(found, n)
  local first = found[1] and found[1].id
  for _, index in ipairs({ BY_END, BY_DELETE_TIME }) do
    if #found >= n then return end
    for _, id in ipairs(call('ZRANGEBYSCORE', index, '-inf', micros(now), 'LIMIT', 0, n + 20)) do
      local s = id ~= first and conversation(id)
      if s == nil then
        removeLost(id)
      elseif s and #found < n then
        s.why = ended(s)
        if s.why then found[#found + 1] = s end
      end
    end
  end
end

-- addOldest adds the oldest conversations that may be evicted to a list, up to n altogether. It returns n less the number
-- of those whose key was lost, which it removes.
local function addOldest(found, n)
  if #found >= n then return n end
  local listed = {}
  for _, s in ipairs(found) do listed[s.id] = true end
  for _, place in ipairs(call('ZRANGE', EVICTABLE, 0, n + #found)) do
    local s = conversation(string.sub(place, 13))
    if not s or s.place ~= place and call('ZSCORE', BY_TIME, s.place) then
      call('ZREM', EVICTABLE, place)
      call('ZREM', BY_TIME, place)
      count('n', -1)
      n = n - 1
    elseif not listed[s.id] and #found < n then
      s.why = 'evicted'
      found[#found + 1] = s
    end
  end
  return n
end

-- tell numbers the change of the script and publishes it: number, epoch of the number, server, tenant, time, what was
-- removed, the encoded changes of the write, and its messages, each after its length. It returns the number and the
-- epoch, separated by a space.
local function tell(server, changes, messages)
  local n = string.format('%.0f', call('HINCRBY', TOTAL, 'c', 1))
  local epoch = call('HGET', TOTAL, 'e') or ''
  local parts = {}
  local function add(text)
    parts[#parts + 1] = #text .. ':'
    parts[#parts + 1] = text
  end
  add(n)
  add(epoch)
  add(server)
  add(T)
  add(now)
  add(tostring(#removed))
  for _, r in ipairs(removed) do
    for _, text in ipairs(r) do add(text) end
  end
  add(changes)
  for _, message in ipairs(messages) do add(message) end
  call('SPUBLISH', P .. 'ch', table.concat(parts))
  return n .. ' ' .. epoch
end

-- isMade reports whether a server has made the hold or release with a number, or a later one of the tenant. Only its last
-- reply can have been lost.
local function isMade(server, n)
  return tonumber(n) <= tonumber(call('HGET', P .. 'hc:' .. server, T) or '0')
end

-- setMade remembers that a server has made the hold or release with a number.
local function setMade(server, n) call('HSET', P .. 'hc:' .. server, T, n) end
