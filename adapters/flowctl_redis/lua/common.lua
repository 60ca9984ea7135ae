-- Put before every script.  Plain Lua 5.1 and HGET/HSET only: fakeredis has no cmsgpack, struct or bit.
-- A script checks all it has to check before it writes: Redis does not undo half a script.

local key = KEYS[1]

-- The refusal for a hash of another schema, or nil.  A key that isn't there is ours to make.
local function other_schema(ours)
  local stored = redis.call('HGET', key, 'schema')
  if stored == ours then return nil end
  if not stored and redis.call('EXISTS', key) == 0 then return nil end
  return {'schema', stored or ''}
end

-- The newest epoch as text and number; nil when the field holds no number.
local function newest_epoch()
  local text = redis.call('HGET', key, 'epoch') or '0'
  return text, tonumber(text)
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
