// report.html: one run.
'use strict';
(() => {
  const data = DATA(), run = data.run, history = data.history, look = data.look, memory = data.memory;
  const page = document.getElementById('page');
  const column = name => {
    const c = history.columns[name];
    if (!c) return [];
    const points = [];
    history.step.forEach((x, i) => { if (c.mean[i] !== null) points.push(c.low ? [x, c.mean[i], c.low[i], c.high[i]] : [x, c.mean[i]]); });
    return points;
  };
  const evaluated = name => history.eval.filter(e => typeof e[name] === 'number').map(e => [e.step, e[name]]);
  const last = points => points.length ? points[points.length - 1][1] : null;
  const name = c => look && look.names && look.names[c] !== undefined ? look.names[c] : String(c);

  // --- head
  const best = run.best || {}, lower = /(^|\/)(loss|perplexity|mae|rmse)/;
  const main = ['accuracy', 'auc', 'f1', 'rmse', 'mae', 'perplexity', 'loss'].find(m => best[m]);
  const loss = column('loss'), rate = column('samples_per_s');
  const steady = rate.slice(Math.min(5, rate.length >> 1)).map(p => p[1]).sort((a, b) => a - b);
  const facts = [];
  if (main) facts.push(['main', /accuracy|f1|top5/.test(main) ? `${(best[main].value * 100).toFixed(2)} %` : num(best[main].value), `best ${main}, step ${num(best[main].step)}`]);
  facts.push([main ? '' : 'main', num(last(loss)), 'loss of the last step']);
  if (best.loss && main !== 'loss') facts.push(['', num(best.loss.value), `best evaluation loss, step ${num(best.loss.step)}`]);
  facts.push(['', `${num(run.step)}`, run.step === run.steps ? 'steps, all done' : `of ${num(run.steps)} steps`]);
  facts.push(['', duration(run.seconds), run.started ? `since ${run.started.replace('T', ' ').replace('Z', ' UTC')}` : '']);
  if (steady.length) facts.push(['', num(steady[steady.length >> 1], 3), 'samples/s (median)']);
  facts.push(['', num(run.parameters), 'trained parameters']);
  if (run.peak_rss_bytes) facts.push(['', bytes(run.peak_rss_bytes), 'most memory resident']);
  page.replaceChildren(
    el('header', {}, el('h1', {}, run.name), el('span', {class: `state ${run.state}`}, run.state),
      el('div', {class: 'sub'}, `${run.model}, ${run.optimizer}, lr ${run.lr}, batch ${num(run.batch_size)}${run.accumulate > 1 ? ` x ${num(run.accumulate)}` : ''}, ${run.precision}` +
        (run.state === 'running' ? `; as of ${run.updated.replace('T', ' ').replace('Z', ' UTC')}, reload for newer` : ''))),
    ...(run.error ? [el('div', {class: 'error'}, run.error)] : []),
    el('div', {class: 'facts'}, facts.map(([kind, value, label]) => el('div', {class: `fact ${kind}`}, el('b', {}, value), el('span', {}, label)))));
  const grid = el('div', {class: 'grid'});
  page.append(grid);

  // --- curves
  const evalLoss = evaluated('loss');
  grid.append(curves([{name: 'training', colour: COLOURS[0], points: loss}, {name: 'evaluation', colour: COLOURS[1], points: evalLoss, dots: true}],
    {title: 'Loss', size: 'wide', height: 290, tools: true, smooth: loss.length > 60 ? 0.85 : 0, note: history.stride > 1 ? `each point is ${history.stride} steps: mean, with the range from least to greatest` : ''}));
  const metrics = [...new Set(history.eval.flatMap(e => Object.keys(e)))].filter(k => k !== 'step' && k !== 'loss');
  const heads = Object.keys(history.columns).filter(k => k.startsWith('loss/'));
  if (heads.length) grid.append(curves(heads.map((k, i) => ({name: k.slice(5), colour: COLOURS[i % 6], points: column(k)})), {title: 'Loss by output', size: 'half', smooth: 0.85, tools: true}));
  const shares = metrics.filter(k => /(^|\/)(accuracy|top5|f1|auc)$/.test(k));
  if (shares.length) grid.append(curves(shares.map((k, i) => ({name: k, colour: COLOURS[(i + 1) % 6], points: evaluated(k), dots: true})), {title: 'Evaluation', size: 'half', height: 210, format: v => num(v)}));
  for (const k of metrics.filter(k => !shares.includes(k)))
    grid.append(curves([{name: k, colour: COLOURS[2], points: evaluated(k), dots: true}], {title: k.startsWith('loss/') ? `Evaluation ${k}` : k[0].toUpperCase() + k.slice(1), size: 'half', height: 210, now: `last ${num(last(evaluated(k)))}`}));
  const row = el('div', {class: 'row'});
  grid.append(row);
  const small = (title, key, colour, options = {}) => {
    const points = column(key);
    if (points.length) row.append(curves([{name: title.toLowerCase(), colour, points, thin: true}], {title, now: `last ${(options.format || num)(last(points))}`, ...options}));
  };
  small('Learning rate', 'lr', COLOURS[3], {zero: true});
  small('Gradient norm', 'grad_norm', COLOURS[4], {smooth: loss.length > 60 ? 0.85 : 0});
  small('Loss scale', 'loss_scale', COLOURS[5]);
  small('Samples per second', 'samples_per_s', COLOURS[2], {zero: true, smooth: loss.length > 60 ? 0.85 : 0});
  const wait = column('wait_ms'), ms = column('ms');
  if (ms.length) {
    const waited = wait.reduce((a, p) => a + p[1], 0) / Math.max(1e-9, ms.reduce((a, p) => a + p[1], 0));
    row.append(curves([{name: 'step', colour: COLOURS[0], points: ms, thin: true}, {name: 'waiting for data', colour: COLOURS[1], points: wait, thin: true}],
      {title: 'Milliseconds per step', log: ms.every(p => p[1] > 0) && wait.every(p => p[1] > 0), smooth: loss.length > 60 ? 0.85 : 0, note: `${(waited * 100).toFixed(1)} % of the time went into waiting for data`}));
  }
  small('Resident memory', 'rss_bytes', COLOURS[5], {zero: true, format: bytes, unit: 1 << 20});
  const known = new Set(['loss', 'epoch_loss', 'lr', 'grad_norm', 'loss_scale', 'samples_per_s', 'ms', 'wait_ms', 'load_ms', 'rss_bytes', ...heads]);
  for (const k of Object.keys(history.columns)) if (!known.has(k) && column(k).length) small(k, k, COLOURS[1]);

  if (row.children.length % 3 === 1) row.style.setProperty('--basis', '45%');  // no card alone in the last line

  // --- what the evaluation shows
  if (look && look.confusion.length) grid.append(confusion());
  if (look && look.worst.length) grid.append(samples('Worst samples', look.worst, 'highest loss of the last evaluation'));
  if (look && look.pictures.length) grid.append(samples('Pictures', look.pictures, 'the first samples of the evaluation data'));
  if (memory && memory.blocks.length) grid.append(memoryMap());

  function confusion() {
    const n = look.confusion.length, size = n <= 24 ? 'half' : 'wide', box = el('div');
    const sums = look.confusion.map(r => r.reduce((a, b) => a + b, 0)), all = sums.reduce((a, b) => a + b, 0);
    const right = look.confusion.reduce((a, r, i) => a + r[i], 0);
    const pairs = [];
    look.confusion.forEach((r, i) => r.forEach((v, k) => { if (i !== k && v) pairs.push([v, i, k]); }));
    pairs.sort((a, b) => b[0] - a[0]);
    const section = card('Confusion matrix', size, box, el('p', {class: 'note'}, `rows: label, columns: answer; ${num(right)} of ${num(all)} right` +
      (pairs.length ? `; most often ${pairs.slice(0, 3).map(([v, i, k]) => `${name(i)} taken for ${name(k)} (${num(v)})`).join(', ')}` : '')));
    watch(box, () => {
      const width = box.clientWidth || 320, label = n <= 40 ? Math.min(110, 14 + 7 * Math.max(...look.confusion.map((_, i) => name(i).length))) : 8;
      const cell = Math.min(n <= 24 ? 46 : 1e9, (width - label - 2) / n), height = cell * n + (n <= 40 ? 20 : 4);
      const svg = el('svg', {viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': 'confusion matrix'});
      look.confusion.forEach((r, i) => {
        if (n <= 40 && cell >= 9) svg.append(el('text', {x: label - 6, y: (i + 0.5) * cell + 4, 'text-anchor': 'end'}, name(i)));
        if (n <= 40 && cell >= 9) svg.append(el('text', {x: label + (i + 0.5) * cell, y: cell * n + 14, 'text-anchor': 'middle'}, name(i).slice(0, Math.max(1, Math.floor(cell / 7)))));
        r.forEach((v, k) => {
          const share = sums[i] ? v / sums[i] : 0;
          const gap = cell > 8 ? 1 : 0;
          svg.append(el('rect', {x: label + k * cell, y: i * cell, width: cell - gap, height: cell - gap, rx: cell > 16 ? 4 : 0, fill: 'var(--grid)'}));
          if (v) svg.append(el('rect', {x: label + k * cell, y: i * cell, width: cell - gap, height: cell - gap, rx: cell > 16 ? 4 : 0,
            fill: i === k ? COLOURS[0] : 'var(--bad)', opacity: 0.15 + 0.85 * (i === k ? share : Math.min(1, share * 3)),
            onpointermove: e => tip(e, [el('div', {}, `label ${name(i)}, answer ${name(k)}`), el('div', {}, `${num(v)} of ${num(sums[i])} (${(share * 100).toFixed(1)} %)`)]), onpointerleave: e => tip(e, null)}));
          if (v && cell >= 24) svg.append(el('text', {x: label + (k + 0.5) * cell, y: (i + 0.5) * cell + 4, 'text-anchor': 'middle', 'pointer-events': 'none',
            style: `fill:${share > 0.35 ? 'var(--card)' : 'var(--ink)'}`}, v > 9999 ? '' : v));
        });
      });
      box.replaceChildren(svg);
    });
    return section;
  }

  function samples(title, list, note) {
    const pictures = list.some(s => s.picture);
    return card(title, look.confusion.length && look.confusion.length <= 24 && title.startsWith('Worst') ? 'half' : 'wide',
      el('div', {class: `samples ${pictures ? '' : 'text'}`}, list.map(s => {
        const hit = s.label === s.said, image = s.picture ? el('img', {src: s.picture, alt: `sample ${s.sample}`, onload: e => { if (e.target.naturalWidth > 64) e.target.className = 'fine'; }}) : null;
        const answer = look.kind === 'numbers' ? [`target ${num(s.target)}, `, el('span', {}, `output ${num(s.output)}`)]
          : [`${name(s.label)} `, el('span', {class: hit ? 'right' : 'wrong'}, hit ? 'recognised' : `taken for ${name(s.said)}`), ` (${(s.probability * 100).toFixed(0)} %)`];
        return el('div', {class: 'sample'}, image, el('div', {}, answer, el('small', {}, `sample ${num(s.sample)}, loss ${num(s.loss, 3)}`), s.input ? el('small', {}, s.input) : null));
      })), el('p', {class: 'note'}, note + (look.looked < (run.eval_samples || 0) ? `; the first ${num(look.looked)} samples were looked at` : '')));
  }

  // --- the arena over one step: time to the right, addresses upwards
  function memoryMap() {
    const kinds = [['forward', 'c0'], ['kept for the backward pass', 'c3'], ['backward', 'c1'], ['scratch', 'c2']];
    const box = el('div'), steps = memory.steps.length;
    const section = card('Memory of one step', 'wide', el('div', {class: 'legend'}, kinds.map(([k, c]) => el('span', {}, el('i', {style: `background:var(--${c})`}), k))), box,
      el('p', {class: 'note'}, `${bytes(memory.bytes)} planned before the first step (no plan can do with less than ${bytes(memory.needed)}); left to right: the ${num(steps)} operators of a step, bottom to top: addresses. ` +
        `Besides: parameters ${bytes(run.memory.parameters)}, optimizer states ${bytes(run.memory.states)}, constants ${bytes(run.memory.constants)}.` +
        (memory.left_out ? ` The smallest ${num(memory.left_out)} blocks are left out.` : '')));
    watch(box, () => {
      const width = box.clientWidth || 320, height = Math.max(200, Math.min(380, width * 0.42)), left = 62, top = 8, bottom = 22;
      const X = s => left + s / steps * (width - left - 2), Y = a => height - bottom - a / memory.bytes * (height - bottom - top);
      const svg = el('svg', {viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': 'memory of one step'});
      for (const v of [0, 0.25, 0.5, 0.75, 1]) svg.append(el('line', {class: 'gridline', x1: left, x2: width, y1: Y(v * memory.bytes), y2: Y(v * memory.bytes)}),
        el('text', {x: left - 7, y: Y(v * memory.bytes) + 4, 'text-anchor': 'end'}, bytes(v * memory.bytes)));
      for (const [label, offset, size, first, end, kind] of memory.blocks) {
        const y = Y(offset + size);
        svg.append(el('rect', {x: X(first), y, width: Math.max(0.8, X(end + 1) - X(first)), height: Math.max(0.5, Y(offset) - y), fill: `var(--${kinds[kind][1]})`, 'fill-opacity': kind === 3 ? 0.55 : 0.62,
          stroke: 'var(--card)', 'stroke-width': Y(offset) - y > 3 ? 0.6 : 0,
          onpointermove: e => {
            e.target.setAttribute('fill-opacity', 1);
            tip(e, [el('div', {}, el('b', {}, kind === 3 ? 'scratch' : label)), el('div', {}, `${bytes(size)} at ${num(offset)}; ${kinds[kind][0]}`),
              el('div', {}, `step ${first + 1} to ${end + 1} of ${steps}`), el('div', {}, `from ${memory.steps[first]}`)]);
          }, onpointerleave: e => { e.target.setAttribute('fill-opacity', kind === 3 ? 0.55 : 0.62); tip(e, null); }}));
      }
      if (memory.turn < steps) svg.append(el('line', {class: 'cross', x1: X(memory.turn), x2: X(memory.turn), y1: top, y2: height - bottom}),
        el('text', {x: X(memory.turn) - 6, y: height - 6, 'text-anchor': 'end'}, 'forward'), el('text', {x: X(memory.turn) + 6, y: height - 6}, 'backward and update'));
      box.replaceChildren(svg);
    });
    return section;
  }

  // --- operators, machine, recipe
  if (data.operators && data.operators.length) {
    const most = data.operators[0].ms;
    grid.append(card('Time by operator', 'wide', el('div', {class: 'scroll'}, el('table', {}, el('tbody', {}, data.operators.slice(0, 20).map(o => el('tr', {},
      el('td', {}, o.name), el('td', {class: 'roomy', style: 'width:34%'}, el('div', {class: 'bar', style: `width:${(100 * o.ms / most).toFixed(1)}%`})),
      el('td', {class: 'n'}, `${num(o.ms, 3)} ms`), el('td', {class: 'n'}, `${(o.share * 100).toFixed(1)} %`), el('td', {class: 'n roomy'}, `${num(o.calls)} x`))))))));
  }
  const m = run.machine || {};
  grid.append(card('Run', 'half', table([['model', run.model], ['data', `${run.data} (${num(run.samples)} samples)`], ['evaluation', run.eval_data ? `${run.eval_data} (${num(run.eval_samples)} samples)` : null],
    ['tensors', `${num(run.tensors)} trained, ${num(run.parameters)} numbers`], ['steps per epoch', num(run.steps_per_epoch)], ['operations', run.flops_per_step ? `${num(run.flops_per_step / 1e9)} GFLOP per step` : null],
    ['started', run.started], ['last change', run.updated]])));
  grid.append(card('Machine and versions', 'half', table([['host', run.host], ['CPU', m.cpu], ['cores', m.cores ? `${m.cores} usable, ${m.threads} threads` : null], ['SIMD', m.simd], ['memory', m.memory ? bytes(m.memory) : null], ['system', m.system],
    ...Object.entries(run.versions || {})])));
  if (data.notes.length) grid.append(card('Notes', 'wide', el('ul', {class: 'notes'}, data.notes.map(n => el('li', {}, n)))));
  grid.append(el('section', {class: 'card wide'}, el('details', {}, el('summary', {}, 'Recipe'), el('pre', {}, data.recipe))));
  page.append(el('footer', {}, `ortrain ${run.versions ? run.versions.ortrain : ''}`));
})();
