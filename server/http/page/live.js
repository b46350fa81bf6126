// The live view: load, experts, jobs.  It asks every 1.5 s, only while it is seen; slower where an answer takes long.

const kPollMs = 1500;
const kSparkPoints = 80;

const live = {
  timer: 0,
  polling: false,
  experts: null,          // GetExperts' answer
  rates: [],              // tokens written a second
  before: null,           // {at, written, read} of the last metrics
  refused: new Set(),     // what this key may not see: asked for again with another key
  jobs: new Map(),        // elements by id
};

const isLive = () => location.hash === '#live';

// ---- load

function showState(load) {
  const ready = Boolean(load && load.ready);
  $('state-dot').className = 'dot' + (ready ? ' ready' : load ? '' : ' gone');
  say($('state-text'), ready ? 'Ready' : load ? 'Loading' : 'No answer');
  $('state').title = load && !ready ? load.not_ready_reason || '' : '';
}

function showLoad(load) {
  showState(load);
  showError($('live-error'), load.ready ? '' : 'Not ready: ' + sentence(load.not_ready_reason || 'it starts'));
  say($('running'), whole.format(load.running_requests || 0));
  say($('waiting'), whole.format(load.waiting_requests || 0));
  const tokens = Number(load.waiting_tokens || 0);
  say($('waiting-note'), tokens ? `requests, ${short.format(tokens)} tokens` : 'requests');
  const preempted = Number(load.preemptions || 0);
  say($('running-note'), preempted ? `requests, ${whole.format(preempted)} preempted so far` : 'requests');
  const workers = [...(load.workers || [])].sort((a, b) => (a.rank || 0) - (b.rank || 0));
  say($('epoch'), String(load.group_epoch || '–'));
  say($('epoch-note'), `epoch, ${workers.length} worker${workers.length === 1 ? '' : 's'}`);
  show($('workers-none'), workers.length === 0);
  $('workers').replaceChildren(...workers.map(workerItem));
}

function workerItem(worker) {
  const used = worker.kv_blocks_used || 0, cached = worker.kv_blocks_cached || 0, total = worker.kv_blocks_total || 0;
  const part = (blocks) => (total ? 100 * blocks / total : 0);
  const percent = (blocks) => `${part(blocks).toFixed(blocks && part(blocks) < 10 ? 1 : 0)} %`;
  const bar = make('div', 'bar', make('i', ''), make('i', ''));
  bar.children[0].style.width = part(used) + '%';
  bar.children[1].style.width = part(cached) + '%';
  const size = worker.block_size || 0;
  const running = worker.running_requests || 0;
  return make('li', 'worker',
      make('div', 'head', make('span', '', `Worker ${worker.rank || 0}`),
           make('span', '', `${worker.state || ''} · ${running} running`)),
      bar,
      make('p', 'hint', total ?
          `KV cache: ${percent(used)} of ${short.format(total * size)} tokens in use, ${percent(cached)} kept for reuse` :
          'No KV cache yet'));
}

// Sums of counters by name.
function countersOf(page) {
  const sums = {written: 0, read: 0};
  for (const [, name, value] of page.matchAll(/^switchyard_(generation|prompt)_tokens_total(?:\{[^}]*\})? (\S+)/gm)) {
    sums[name === 'generation' ? 'written' : 'read'] += Number(value);
  }
  return sums;
}

function showRates(page) {
  const now = {at: performance.now(), ...countersOf(page)};
  const before = live.before;
  live.before = now;
  if (!before || now.written < before.written || now.at - before.at > 10 * kPollMs) return;
  const took = (now.at - before.at) / 1000;
  const written = (now.written - before.written) / took;
  say($('out-rate'), rate(written));
  say($('in-rate'), rate(Math.max(0, now.read - before.read) / took));
  live.rates = [...live.rates, written].slice(-kSparkPoints);
  const most = Math.max(1, ...live.rates);
  const from = kSparkPoints - live.rates.length;
  const points = live.rates.map((value, i) =>
    `${(240 * (from + i) / (kSparkPoints - 1)).toFixed(1)} ${(38 - 36 * value / most).toFixed(1)}`);
  $('spark-line').setAttribute('d', 'M' + points.join('L'));
  const start = 240 * from / (kSparkPoints - 1);
  $('spark-area').setAttribute('d', `M${start.toFixed(1)} 40L${points.join('L')}L240 40Z`);
}

// ---- experts

const kReasons = {RESIDENT: 'lives here', START: 'copy since the start', ESTIMATE: 'copy, as an estimate asked for it',
                  GATE: 'copy, as the gate asked for it'};

function countOf(expert) {
  const phase = $('phase').value;
  const prefill = Number(expert.prefill_rows || 0), decode = Number(expert.decode_rows || 0);
  return phase === 'prefill' ? prefill : phase === 'decode' ? decode : prefill + decode;
}

function placesOf(expert) {
  const now = (expert.now || []).map((replica) => ({worker: replica.worker || 0, why: kReasons[replica.reason] || ''}));
  return now.length ? now : (expert.workers || []).map((worker) => ({worker, why: kReasons.RESIDENT}));
}

function rowOf(layer) {
  const counts = layer.experts.map(countOf);
  const mean = counts.reduce((sum, count) => sum + count, 0) / Math.max(1, counts.length);
  return {ratio: counts.map((count) => (mean ? count / mean : 0)),
          many: layer.experts.map((expert) => new Set(placesOf(expert).map((place) => place.worker)).size > 1)};
}

function cellText(layer, expert) {
  const experts = live.experts && live.experts.layers[layer] && live.experts.layers[layer].experts;
  if (!experts || !experts[expert]) return '';
  const count = countOf(experts[expert]);
  const mean = experts.reduce((sum, each) => sum + countOf(each), 0) / experts.length;
  const places = [...new Set(placesOf(experts[expert]).map((place) => place.worker))];
  return `Layer ${layer}, expert ${expert}: chosen ${whole.format(count)} times` +
      (mean ? `, ${(count / mean).toFixed(2)}× the layer’s mean` : '') +
      (places.length ? `; on worker${places.length > 1 ? 's' : ''} ${places.join(', ')}` : '') + '.';
}

const map = new HeatMap($('map'), (layer, expert) => say($('cell-text'), cellText(layer, expert)), explain);

async function explain(layer, expert) {
  say($('cell-text'), cellText(layer, expert));
  say($('why-title'), `Where expert ${expert} of layer ${layer} is, and why`);
  show($('why'), true);
  try {
    const answer = await getJson(`api/experts?layer=${layer}&expert=${expert}`);
    if (!map.chosen || map.chosen.layer !== layer || map.chosen.expert !== expert) return;
    say($('why-text'), answer.why || '');
    const places = placesOf(answer.layers[0].experts[expert]);
    $('replicas').replaceChildren(...places.map((place) =>
      make('li', '', `worker ${place.worker}${place.why ? ': ' + place.why : ''}`)));
  } catch (error) {
    say($('why-text'), error.message);
    $('replicas').replaceChildren();
  }
}

function showExperts(answer) {
  live.experts = answer;
  for (const layer of answer.layers || []) layer.experts = layer.experts || [];
  showError($('experts-error'), '');
  show($('experts-body'), true);
  const tokens = Number(answer.prefill_tokens || 0) + Number(answer.decode_tokens || 0);
  say($('experts-note'), `${answer.num_moe_layers} layers of ${answer.num_experts} experts, ` +
      `${answer.experts_per_token} for each token, on ${answer.num_workers} worker${answer.num_workers === 1 ? '' : 's'}; ` +
      `placement ${answer.placement}. ` +
      (tokens ? `Counts of the last ${short.format(tokens)} tokens, older ones faded.` : 'No tokens yet.'));
  const rows = (answer.layers || []).map(rowOf);
  show($('copies'), rows.some((row) => row.many.includes(true)));
  map.show(rows);
}

// ---- jobs

function curveOf(losses) {
  const steps = losses.steps, evaluated = losses.evaluations;
  const all = [...steps, ...evaluated];
  const first = Math.min(...all.map((point) => point[0])), last = Math.max(...all.map((point) => point[0]), first + 1);
  const low = Math.min(...all.map((point) => point[1])), high = Math.max(...all.map((point) => point[1]), low + 1e-6);
  const at = ([step, loss]) => `${(600 * (step - first) / (last - first)).toFixed(1)} ` +
      `${(114 - 108 * (loss - low) / (high - low)).toFixed(1)}`;
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('class', 'curve');
  svg.setAttribute('viewBox', '0 0 600 120');
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('role', 'img');
  const lastLoss = steps.length ? steps[steps.length - 1][1] : evaluated[evaluated.length - 1][1];
  svg.setAttribute('aria-label', `Loss from ${all[0][1].toFixed(3)} at step ${first} to ${lastLoss.toFixed(3)} at step ${last}`);
  const path = (className, d) => {
    const element = document.createElementNS('http://www.w3.org/2000/svg', 'path');
    element.setAttribute('class', className);
    element.setAttribute('d', d);
    svg.append(element);
  };
  path('grid', 'M0 6H600M0 60H600M0 114H600');
  if (steps.length) path('line', 'M' + steps.map(at).join('L') + (steps.length === 1 ? 'h.1' : ''));
  if (evaluated.length) path('evaluated', evaluated.map((point) => `M${at(point)}h.1`).join(''));
  const text = make('div', 'curve-text', make('span', '', `step ${whole.format(first)}`),
      make('span', '', `loss ${low.toFixed(3)} to ${high.toFixed(3)}` + (evaluated.length ? ', dots: evaluations' : '')),
      make('span', '', `step ${whole.format(last)}`));
  return [svg, text];
}

function jobFigures(job) {
  const progress = job.progress || {}, parts = [];
  const step = Number(progress.step || 0), steps = Number(job.spec && job.spec.steps || progress.total_steps || 0);
  if (steps) parts.push(`step ${whole.format(step)} of ${whole.format(steps)}`);
  if (step && !progress.skipped) parts.push(`loss ${Number(progress.loss || 0).toFixed(3)}`);
  if (job.evaluation) parts.push(`evaluated ${Number(job.evaluation.loss || 0).toFixed(3)}`);
  if (job.state === 'JOB_STATE_RUNNING') {
    if (progress.tokens_per_second) parts.push(`${short.format(progress.tokens_per_second)} tokens/s`);
    if (job.seconds_left) parts.push(`${seconds(job.seconds_left)} left`);
  }
  if (job.owner) parts.push(`of ${job.owner}`);
  if (job.origin) parts.push(`fork of ${job.origin.job} at step ${Number(job.origin.step || 0)}`);
  return parts.join(' · ');
}

function jobItem(id) {
  const parts = {id: make('span', 'id', id), state: make('span', ''), figures: make('p', 'figures'),
                 note: make('p', 'hint'), error: make('p', 'bad'), curve: make('div', '')};
  const item = make('li', 'job', make('div', 'head', parts.id, parts.state), parts.figures, parts.note, parts.error,
                    parts.curve);
  return {item, ...parts, step: '', asked: false};
}

async function showJob(job) {
  if (!live.jobs.has(job.id)) live.jobs.set(job.id, jobItem(job.id));
  const parts = live.jobs.get(job.id);
  say(parts.state, (job.state || '').replace('JOB_STATE_', '').toLowerCase());
  say(parts.figures, jobFigures(job));
  showError(parts.note, job.note);
  showError(parts.error, job.error && sentence(job.error.message));
  // The curve again when there are new steps, for the jobs that move and the first few of the others.
  const step = `${job.progress && job.progress.step} ${job.evaluation && job.evaluation.step}`;
  if (!job.progress || parts.step === step || parts.asked) return;
  parts.asked = true;
  try {
    const losses = await getJson(`api/jobs/${encodeURIComponent(job.id)}/losses`);
    if (losses.steps.length + losses.evaluations.length) parts.curve.replaceChildren(...curveOf(losses));
    parts.step = step;
  } finally {
    parts.asked = false;
  }
}

const kShownJobs = 12;

async function showJobs(answer) {
  const jobs = (answer.jobs || []).slice(0, kShownJobs);
  const more = (answer.jobs || []).length > jobs.length || answer.next_page_token;
  showError($('jobs-none'), jobs.length === 0 ? 'None yet.' : more ? `The newest ${jobs.length}; switchyard train list shows all.` : '');
  const shown = Promise.allSettled(jobs.map(showJob));
  const items = jobs.map((job) => live.jobs.get(job.id).item);
  const there = [...$('jobs').children];
  if (there.length !== items.length || items.some((item, i) => item !== there[i])) $('jobs').replaceChildren(...items);
  await shown;
}

// ---- polling

// Asks for `path` unless this key may not see it.
async function poll(name, path, take, fail) {
  if (live.refused.has(name)) return;
  try {
    const response = await call(path);
    await take(name === 'metrics' ? await response.text() : await response.json());
  } catch (error) {
    if (error.status === 401 || error.status === 403) live.refused.add(name);
    if (error.status === 400 && name === 'jobs') live.refused.add(name);  // this server has none
    fail(error);
  }
}

async function pollAll() {
  if (live.polling) return;
  clearTimeout(live.timer);
  if (document.hidden) return;
  live.polling = true;
  const began = performance.now();
  const asks = [poll('load', 'api/load', showLoad, (error) => {
    if (error.status !== 401) showState(null);
    showError($('live-error'), error.status === 401 ? '' : error.message);
  })];
  if (isLive()) {
    asks.push(
        poll('metrics', 'metrics', showRates, (error) => say($('rate-note'), error.status === 403 ?
            'Shown to keys of administrators' : 'No figures')),
        poll('experts', 'api/experts', showExperts, (error) => {
          showError($('experts-error'), error.message);
          show($('experts-body'), false);
        }),
        poll('jobs', 'api/jobs', showJobs, (error) => {
          showError($('jobs-none'), error.message);
        }));
  }
  await Promise.allSettled(asks);
  live.polling = false;
  const pause = isLive() ? kPollMs : 10 * kPollMs;
  live.timer = setTimeout(pollAll, Math.max(pause, 8 * (performance.now() - began)));
}

function showView() {
  for (const name of ['chat', 'live']) {
    const is_this = isLive() === (name === 'live');
    show($(name), is_this);
    is_this ? $('to-' + name).setAttribute('aria-current', 'page') : $('to-' + name).removeAttribute('aria-current');
  }
  if (isLive()) drawLegend($('legend'));
  pollAll();
}

async function showModel() {
  try {
    const models = await getJson('v1/models');
    say($('model'), models.data[0].id);
    document.title = models.data[0].id + ' · Switchyard';
  } catch {
    say($('model'), '');
  }
}

$('phase').addEventListener('change', () => live.experts && showExperts(live.experts));
addEventListener('hashchange', showView);
document.addEventListener('visibilitychange', pollAll);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => drawLegend($('legend')));
addEventListener('keychange', () => {
  live.refused.clear();
  showModel();
  pollAll();
});
showModel();
showView();
