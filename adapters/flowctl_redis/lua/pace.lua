-- One exchange of a worker with a target that many share: its figures in, its leases out.
--
-- KEYS[1], a hash: limit, rate (what was learned of it; 0: nothing), reason, budget, set:min, set:max, set:budget, resets, leader,
-- leader_until, leased, rated, workers, seen, mark*, total, c:<job>, w:<worker>, q:*, u:*.
-- A worker's entry is "until|holds|rate|goal|rate goal|rest"; rest is its own and the leader's.
-- Sums are "calls cost call_ms refused failed waited_ms".
--
-- ARGV: 1 worker, 2 job, 3 rest, 4 holds, 5 its rate, 6 ttl [ms], 7 the limit it knows, 8 budget or
-- '', 9-14 what to add to the sums, 15 'stay' or 'bye', 16 what it wants of the quotas, 17 limit or
-- '' (a leader's decision), 18 reason, 19 rate, then for each worker that gets another share: name,
-- goal, rate goal.
--
-- A quota is in q:<unit/window>, "amount|begin|end|used|full at": what is used in the window, and
-- when nothing of what was used counts any more; of a job in u:<job>|<unit/window>, "begin|used".
-- ARGV[16] has the number of calls, then lines "amount|at once|rate|begin|end|first|mean|change|key"
-- (flowctl/core/pacing/quotas.py, Wish; a rate of 0: counted, not spread); times are in ms.
--
-- A lease is made smaller only by its worker, who says what it holds: it may use all of that until
-- it has read the answer.  It grows only by what nobody else holds.

local key = KEYS[1]
local LEADER_MS = 1000  -- four exchanges without a sign: another leads
local MARK_MS = 10000
local KEEP_MS = 30 * 24 * 3600 * 1000  -- what was learned is worth a month

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local me = 'w:' .. ARGV[1]

local function get(field) return redis.call('HGET', key, field) end
local function number(field, default) return tonumber(get(field) or '') or default end
local function text(value) return string.format('%.15g', value) end
local function set(field, value) redis.call('HSET', key, field, value) end

local function parsed(entry)
  local till, holds, rate, goal, rate_goal, rest =
    string.match(entry or '', '^(%d+)|(%d+)|([^|]+)|(%d+)|([^|]+)|(.*)$')
  if not till then return nil end
  return {
    till = tonumber(till), holds = tonumber(holds), rate = tonumber(rate),
    goal = tonumber(goal), rate_goal = tonumber(rate_goal), rest = rest,
  }
end

local function written(e)
  return string.format('%.0f|%d|%.15g|%d|%.15g|%s', e.till, e.holds, e.rate, e.goal, e.rate_goal, e.rest)
end

local function add_sums(field)
  local sums = {}
  for part in string.gmatch(get(field) or '', '%S+') do sums[#sums + 1] = tonumber(part) end
  for i = 1, 6 do sums[i] = text((sums[i] or 0) + tonumber(ARGV[8 + i])) end
  set(field, table.concat(sums, ' '))
end

-- What the user has set counts at once, whatever the leader decides.
local function bounded(limit)
  return math.max(number('set:min', 1), math.min(number('set:max', limit), limit))
end

-- 1. A leader's decision.
if ARGV[17] ~= '' and get('leader') == ARGV[1] then
  set('limit', ARGV[17])
  set('reason', ARGV[18])
  set('rate', ARGV[19])
  for i = 20, #ARGV, 3 do
    local other = parsed(get('w:' .. ARGV[i]))
    if other then
      other.goal, other.rate_goal = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
      set('w:' .. ARGV[i], written(other))
    end
  end
end
if not get('limit') then set('limit', ARGV[7]) end
if get('budget') ~= ARGV[8] then set('budget', ARGV[8]) end  -- for people

-- 2. What the worker did.
local adds = false
for i = 9, 14 do adds = adds or ARGV[i] ~= '0' end
if adds then
  add_sums('total')
  add_sums('c:' .. ARGV[2])
end

-- 3. Its lease.
local limit = bounded(number('limit', 1))
local allowed = tonumber(get('set:budget') or ARGV[8]) or 0  -- 0: none, rates don't count
local learned, budget = number('rate', 0), allowed
if learned > 0 and (allowed == 0 or learned < allowed) then budget = learned end
local leased, rated = number('leased', 0), number('rated', 0)
local mine = parsed(get(me))
local claims, claims_rate = tonumber(ARGV[4]), tonumber(ARGV[5])
if mine then
  leased, rated = leased - mine.holds, rated - mine.rate
  mine.holds, mine.rate = math.min(mine.holds, claims), math.min(mine.rate, claims_rate)
else
  -- New, expired, or the server was emptied: what it holds is granted again as far as there is room,
  -- and one permit if there is any, so that it can begin before the leader has seen it.
  local free, free_rate = math.max(0, limit - leased), math.max(0, budget - rated)
  mine = {holds = math.min(claims, free), rate = math.min(claims_rate, free_rate)}
  mine.goal, mine.rate_goal = math.min(math.max(claims, 1), free), mine.rate
end
local permits, rate = mine.goal, mine.rate_goal
if ARGV[15] == 'bye' then
  redis.call('HDEL', key, me)
  if get('leader') == ARGV[1] then redis.call('HDEL', key, 'leader', 'leader_until') end
else
  if permits > mine.holds then
    mine.holds = mine.holds + math.max(0, math.min(permits - mine.holds, limit - leased - mine.holds))
    permits = mine.holds
  end
  if rate > mine.rate then
    mine.rate = mine.rate + math.max(0, math.min(rate - mine.rate, budget - rated - mine.rate))
    rate = mine.rate
  end
  mine.till, mine.rest = now + tonumber(ARGV[6]), ARGV[3]
  set(me, written(mine))
  leased, rated = leased + mine.holds, rated + mine.rate
end
set('leased', text(leased))
set('rated', text(rated))

-- 4. Quotas: what it gives back, and as many calls as all of them have room for.
local quotas, calls = {}, 0
for line in string.gmatch(ARGV[16], '[^\n]+') do
  local part = {}
  local rest, key_of = string.match(line, '^(.*|)(.*)$')
  if not rest then
    calls = tonumber(line)
  else
    for number in string.gmatch(rest, '([^|]+)|') do part[#part + 1] = tonumber(number) end
    quotas[#quotas + 1] = {
      amount = part[1], at_once = part[2], rate = part[3], begin = part[4], till = part[5],
      first = part[6], mean = part[7], change = part[8], key = key_of, used = 0, full_at = 0,
    }
  end
end

local function fits(q)  -- how many calls
  local has
  if q.rate > 0 then
    has = q.at_once - q.rate * math.max(0, q.full_at - now)
    if q.first > q.at_once then  -- it waits until that much more has come
      has = math.max(has, math.min(q.first, q.at_once + q.rate * (now - q.full_at)))
    end
  else
    if now < q.begin or now >= q.till then return 0 end  -- a clock is wrong
    has = q.amount - q.used
  end
  has = has * (1 + 1e-9)
  if has < q.first then return 0 end
  return q.mean > 0 and 1 + math.floor((has - q.first) / q.mean) or calls
end

local room = calls
for _, q in ipairs(quotas) do
  local amount, begin, till, used, full_at =
    string.match(get('q:' .. q.key) or '', '^([^|]+)|([^|]+)|([^|]+)|([^|]+)|([^|]+)$')
  if amount then
    q.full_at = tonumber(full_at)
    if now < tonumber(till) or q.begin <= tonumber(begin) then
      q.begin, q.till, q.used = tonumber(begin), tonumber(till), tonumber(used)
    else  -- what was given back is of the window before
      q.change = math.max(0, q.change)
    end
  end
  q.used = math.max(0, q.used + q.change)
  if q.rate > 0 and q.change > 0 then
    q.full_at = math.max(q.full_at, now) + q.change / q.rate
  elseif q.rate > 0 then
    q.full_at = math.max(math.min(q.full_at, now), q.full_at + q.change / q.rate)
  end
  room = math.min(room, fits(q))
end
local share = math.max(1, math.ceil(room / number('workers', 1)))
calls = ARGV[15] == 'bye' and 0 or math.max(0, math.min(room, share))
local granted = {}
for i, q in ipairs(quotas) do
  local takes = calls > 0 and q.first + (calls - 1) * q.mean or 0
  q.used = q.used + takes
  if q.rate > 0 and takes > 0 then q.full_at = math.max(q.full_at, now) + takes / q.rate end
  set('q:' .. q.key, table.concat({
    text(q.amount), text(q.begin), text(q.till), text(q.used), text(q.full_at)}, '|'))
  local field = 'u:' .. ARGV[2] .. '|' .. q.key
  local begin, used = string.match(get(field) or '', '^([^|]+)|([^|]+)$')
  used = begin and tonumber(begin) == q.begin and tonumber(used) or 0
  set(field, text(q.begin) .. '|' .. text(math.max(0, used + q.change + takes)))
  granted[i] = text(takes) .. '|' .. text(math.max(0, q.amount - q.used)) .. '|' .. text(q.till - now)
end

-- 5. Who leads reads what all have said, and takes leases back that have ended.
local leads = ARGV[15] ~= 'bye' and (get('leader') == ARGV[1] or number('leader_until', 0) <= now)
local reply = {
  text(now), text(limit), text(permits), text(rate), leads and '1' or '0', get('workers') or '1',
  text(budget), budget ~= allowed and '1' or '0', get('reason') or '', table.concat(granted, '\n'),
}
if leads then
  redis.call('HSET', key, 'leader', ARGV[1], 'leader_until', text(now + LEADER_MS), 'seen', text(now))
  redis.call('PEXPIRE', key, KEEP_MS)
  -- Two marks of the sums, so that people see what happened in the last 10 to 20 s.
  if now - number('mark_at', 0) >= MARK_MS then
    redis.call('HSET', key, 'mark_before', get('mark') or '', 'mark_before_at', get('mark_at') or '0',
      'mark', get('total') or '', 'mark_at', text(now))
  end
  for _, field in ipairs({'total', 'set:min', 'set:max', 'resets'}) do
    reply[#reply + 1] = get(field) or ''
  end
  reply[#reply + 1], reply[#reply + 2] = text(allowed), text(learned)
  local all, count = redis.call('HGETALL', key), 0
  leased, rated = 0, 0
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'w:' then
      local e = parsed(all[i + 1])
      if e and e.till > now then
        leased, rated, count = leased + e.holds, rated + e.rate, count + 1
        reply[#reply + 1] = string.sub(all[i], 3)
        reply[#reply + 1] = all[i + 1]
      else
        redis.call('HDEL', key, all[i])
      end
    end
  end
  redis.call('HSET', key, 'leased', text(leased), 'rated', text(rated), 'workers', count)
end
return reply
