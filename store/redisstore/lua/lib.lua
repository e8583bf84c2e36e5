-- What all scripts share. ARGV begins with the prefix of the bucket's keys, the tenant as it is part of keys, and the
-- time of the call in nanoseconds, as 19 digits: doubles hold no nanoseconds, but texts of one length can be compared.
local P, T, now = ARGV[1], ARGV[2], ARGV[3]
local call = redis.call
local TENANT, TOTAL = P .. 't:' .. T, P .. 'st'
local BY_TIME, EVICTABLE = P .. 'ix:' .. T, P .. 'ev:' .. T
local BY_END, BY_DELETE_TIME, EPHEMERAL = P .. 'ex:' .. T, P .. 'ed:' .. T, P .. 'em:' .. T

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

-- listTenant puts the tenant into the list of tenants, or removes it if it has neither conversations nor records.
local function listTenant()
  local f = call('HMGET', TENANT, 'n', 'r', 'b', 'rev')
  if (tonumber(f[1]) or 0) > 0 or (tonumber(f[2]) or 0) > 0 then
    call('ZADD', P .. 'tn', 0, T)
  else
    call('ZREM', P .. 'tn', T)
    -- Revisions must not be used again, and requests count as bytes until they expire.
    if not f[4] and (tonumber(f[3]) or 0) == 0 then call('UNLINK', TENANT) end
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

-- conversation returns the summary of a conversation, with its place and its ephemeral state; nil if there is none.
local function conversation(id)
  local f = call('HMGET', P .. 'c:' .. T .. id, 's', 'k', 'e')
  if not f[2] then return nil end
  local s = summary(f[1])
  s.id, s.place, s.ephemeral = id, f[2] .. id, f[3]
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

-- remove removes a conversation. Its id becomes an ordinary one, unless it is held. why is nil if the caller reports
-- the removal itself.
local function remove(s, why)
  local id = s.id
  local name = T .. id
  call('UNLINK', P .. 'c:' .. name, P .. 'm:' .. name, P .. 'k:' .. name, P .. 'kx:' .. name, P .. 'ks:' .. name, P .. 'tc:' .. name)
  call('ZREM', BY_TIME, s.place)
  call('ZREM', EVICTABLE, s.place)
  call('ZREM', BY_END, id)
  call('ZREM', BY_DELETE_TIME, id)
  if s.ephemeral and not isHeld(s.ephemeral) then call('HDEL', EPHEMERAL, id) end
  forgetRunning(id)
  forgetTurns(id)
  count('n', -1)
  count('m', -tonumber(s.messages))
  count('b', -s.bytes - s.recordBytes)
  count('r', -s.records)
  count('y', -s.recordBytes)
  if why then
    removed[#removed + 1] = { id, s.uid, s.version, s.messages, s.ends, why }
  end
end

-- addEnded adds conversations of the tenant that have ended to a list, each with why, up to n altogether.
local function addEnded(found, n)
  local first = found[1] and found[1].id
  for _, index in ipairs({ BY_END, BY_DELETE_TIME }) do
    if #found >= n then return end
    for _, id in ipairs(call('ZRANGEBYSCORE', index, '-inf', micros(now), 'LIMIT', 0, n + 20)) do
      local s = id ~= first and conversation(id)
      if s == nil then
        call('ZREM', index, id)
      elseif s and #found < n then
        s.why = ended(s)
        if s.why then found[#found + 1] = s end
      end
    end
  end
end

-- addOldest adds the oldest conversations that may be evicted to a list, up to n altogether.
local function addOldest(found, n)
  if #found >= n then return end
  local listed = {}
  for _, s in ipairs(found) do listed[s.id] = true end
  for _, place in ipairs(call('ZRANGE', EVICTABLE, 0, n + #found)) do
    local s = conversation(string.sub(place, 13))
    if s and not listed[s.id] and #found < n then
      s.why = 'evicted'
      found[#found + 1] = s
    end
  end
end

-- tell numbers the change of the script and publishes it: number, server, tenant, time, what was removed, the encoded
-- changes of the write, and its messages, each after its length. It returns the number.
local function tell(server, changes, messages)
  local n = call('HINCRBY', TOTAL, 'c', 1)
  local parts = {}
  local function add(text)
    parts[#parts + 1] = #text .. ':'
    parts[#parts + 1] = text
  end
  add(string.format('%.0f', n))
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
  return n
end
