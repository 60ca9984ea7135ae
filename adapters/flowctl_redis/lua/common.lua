-- Put before every script.  Plain Lua 5.1 and HGET/HSET only: fakeredis has no cmsgpack, struct or bit.
-- A script checks all it has to check before it writes: Redis does not undo half a script.

local key = KEYS[1]

-- The refusal for a hash of a schema that we don't know, or nil.  A key that isn't there is ours to
-- make.  '2' is '1' with blocks.
local function other_schema()
  local stored = redis.call('HGET', key, 'schema')
  if stored == '1' or stored == '2' then return nil end
  if not stored and redis.call('EXISTS', key) == 0 then return nil end
  return {'schema', stored or ''}
end

-- A number field as text and number, '0' when absent; nil where it holds anything but a whole number
-- as Redis writes it.  tonumber alone also takes "nan", which is below no epoch, "inf" and "0x7".
-- Up to 15 digits: Lua's numbers are exact, and HINCRBY has room.
local function whole(field)
  local text = redis.call('HGET', key, field) or '0'
  local is_whole = text == '0' or string.match(text, '^[1-9]%d*$')
  if not is_whole or #text > 15 then return text, nil end
  return text, tonumber(text)
end

-- The newest epoch as text and number; nil when the field holds no number, or less than its copy:
-- then it is damaged, and an older driver would pass.  Older versions wrote, and raise, no copy.
local function newest_epoch()
  local text, number = whole('epoch')
  local _, copy = whole('epoch_copy')
  if not copy or (number and number < copy) then return text, nil end
  return text, number
end

local function write_epoch(text)
  redis.call('HSET', key, 'epoch', text, 'epoch_copy', text)
end

-- The refusal where a field that scripts count with holds no number, or nil.
local function bad_number()
  for field, read in pairs({epoch = newest_epoch, revision = whole}) do
    local text, number = read(field)
    if not number then return {'corrupt', field} end
  end
  return nil
end

-- The server's clock [unix s]: drivers on many machines, some of them wrong, share this one.
local function server_time_s()
  return tonumber(redis.call('TIME')[1])
end

-- A partition's value is "<hex of the position's sortable bytes>|<msgpack>".
local function sort_key(value)
  return string.match(value, '^(%x*)|')
end

-- Bytewise a < b.  Not Lua's "<": that is strcoll, and Redis takes LC_COLLATE from its environment.
local function below(a, b)
  if a == b then return false end
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end
