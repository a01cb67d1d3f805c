// What report.js and compare.js draw with: elements, numbers, curves, tooltips. No library.
'use strict';
const DATA = () => JSON.parse(document.getElementById('data').textContent);
const COLOURS = ['--c0', '--c1', '--c2', '--c3', '--c4', '--c5'].map(c => `var(${c})`);

function el(tag, attributes, ...children) {
  const svg = /^(svg|path|line|text|circle|rect|g|clipPath)$/.test(tag);
  const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {}))
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (v !== undefined && v !== null && v !== false) e.setAttribute(k, v);
  for (const c of children.flat()) if (c !== null && c !== undefined) e.append(c);
  return e;
}

// 0.0012345 -> "0.001235", 12345678 -> "1.235e7"
function num(v, digits = 4) {
  if (v === null || v === undefined || !isFinite(v)) return 'n/a';
  if (Number.isInteger(v) && Math.abs(v) < 1e7) return v.toLocaleString('en');
  const a = Math.abs(v);
  if (a !== 0 && (a < 1e-4 || a >= 1e7)) return v.toExponential(digits - 2).replace('e+', 'e');
  const text = v.toPrecision(digits);
  return a >= 1e3 ? Number(text).toLocaleString('en') : text.includes('.') ? text.replace(/\.?0+$/, '') : text;
}
function bytes(v) {
  if (v < 10240) return `${Math.round(v)} B`;
  const units = ['KiB', 'MiB', 'GiB', 'TiB'];
  let i = -1;
  do { v /= 1024; ++i; } while (v >= 1024 && i < 3);
  return `${v.toFixed(v < 100 ? 1 : 0)} ${units[i]}`;
}
function duration(s) {
  if (!isFinite(s)) return 'n/a';
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  const m = Math.floor(s / 60), h = Math.floor(m / 60);
  return h ? `${h} h ${m % 60} min` : `${m} min ${Math.floor(s % 60)} s`;
}

// --- the tooltip: one for the page
function tip(event, content) {
  const t = document.getElementById('tip');
  if (!content) { t.hidden = true; return; }
  t.replaceChildren(...[content].flat());
  t.hidden = false;
  const w = t.offsetWidth, left = event.pageX + 16, room = document.documentElement.clientWidth - 8;
  t.style.left = `${left + w > room ? Math.max(8, Math.min(event.pageX - w - 16, room - w)) : left}px`;
  t.style.top = `${event.pageY + 18}px`;
}

// Round numbers between low and high.
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(k => k * power).find(k => k >= raw * 0.999) || power * 10;
  const out = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return out;
}

// Mean of what came before, so that noise does not hide the way; weight 0: as it is.
function smooth(points, weight) {
  let mean = 0, mass = 0;
  return points.map(([x, y]) => {
    mean = mean * weight + y * (1 - weight);
    mass = mass * weight + (1 - weight);
    return [x, mean / mass];
  });
}

// A card with curves over the step. series: [{name, colour, points: [[x, y, low, high]], dots, thin}].
// options: {title, size, height, log, smooth, zero, format, unit, tools, now, note}
function curves(series, options) {
  series = series.filter(s => s.points.length);
  const format = options.format || (v => num(v));
  const state = {log: !!options.log, smooth: options.smooth || 0};
  const box = el('div');
  const tools = options.tools && series.length ? el('div', {class: 'tools'}) : null;
  if (tools) {
    const positive = series.every(s => s.points.every(p => p[1] > 0));
    tools.append('smoothing', el('input', {type: 'range', min: 0, max: 0.99, step: 0.01, value: state.smooth, 'aria-label': 'smoothing',
      oninput: e => { state.smooth = Number(e.target.value); draw(); }}));
    if (positive) tools.append(el('button', {'aria-pressed': state.log, onclick: e => {
      state.log = !state.log;
      e.target.setAttribute('aria-pressed', state.log);
      draw();
    }}, 'log'));
  }
  const legend = series.length > 1 ? el('div', {class: 'legend'}, series.map(s => el('span', {}, el('i', {style: `background:${s.colour}`}), s.name))) : null;
  const card = el('section', {class: `card ${options.size || ''}`}, el('div', {class: 'head'}, el('h2', {}, options.title), legend,
    options.now ? el('span', {class: 'now'}, options.now) : null, tools), box, options.note ? el('p', {class: 'note'}, options.note) : null);

  function draw() {
    const width = box.clientWidth || 320, height = options.height || 190, left = 50, right = 8, top = 8, bottom = 22;
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const s of series) for (const p of s.points) {
      if (!isFinite(p[1])) continue;
      x0 = Math.min(x0, p[0]); x1 = Math.max(x1, p[0]); y0 = Math.min(y0, p[1]); y1 = Math.max(y1, p[1]);
    }
    if (x0 > x1) { box.replaceChildren(el('p', {class: 'note'}, 'no values')); return; }
    if (options.zero && !state.log) y0 = Math.min(0, y0);
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
    if (y0 === y1) { const d = Math.abs(y0) * 0.1 || 1; y0 -= d; y1 += d; }
    else if (!state.log) { const d = (y1 - y0) * 0.05; y1 += d; if (!(options.zero && y0 === 0)) y0 -= y0 >= 0 && y0 - d < 0 ? y0 : d; }
    const f = state.log ? Math.log10 : v => v;
    const X = x => left + (x - x0) / (x1 - x0) * (width - left - right);
    const Y = y => top + (f(y1) - f(y)) / (f(y1) - f(y0)) * (height - top - bottom);
    const svg = el('svg', {viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': options.title});
    const unit = state.log ? 1 : options.unit || 1;  // whose multiples are round numbers
    let marks = ticks(f(y0) / unit, f(y1) / unit, Math.max(2, (height - 40) / 36)).map(v => v * unit);
    if (state.log) marks = marks.map(v => 10 ** v);
    for (const v of marks) svg.append(el('line', {class: 'gridline', x1: left, x2: width - right, y1: Y(v), y2: Y(v)}),
      el('text', {x: left - 7, y: Y(v) + 4, 'text-anchor': 'end'}, format(v, 3)));
    for (const v of ticks(x0, x1, Math.max(2, (width - 60) / 80))) if (Number.isInteger(v))
      svg.append(el('text', {x: X(v), y: height - 5, 'text-anchor': X(v) > width - 24 ? 'end' : 'middle'}, num(v)));
    svg.append(el('line', {class: 'axis', x1: left, x2: width - right, y1: height - bottom, y2: height - bottom}));
    const clamp = y => Math.max(top - 2, Math.min(height - bottom, y));
    const line = points => points.map(([x, y], i) => `${i ? 'L' : 'M'}${X(x).toFixed(1)} ${clamp(Y(y)).toFixed(1)}`).join('');
    for (const s of series) {
      const points = s.points.filter(p => isFinite(p[1]) && (!state.log || p[1] > 0));
      const smoothed = state.smooth > 0 && !s.dots && points.length > 2;
      if (!s.dots && points.length && points[0].length > 2)
        svg.append(el('path', {d: line(points.map(p => [p[0], p[3]])) + line(points.map(p => [p[0], Math.max(p[2], state.log ? y0 : p[2])]).reverse()).replace('M', 'L') + 'Z', fill: s.colour, opacity: 0.13}));
      if (smoothed) svg.append(el('path', {d: line(points), fill: 'none', stroke: s.colour, 'stroke-width': 1, opacity: 0.28}));
      svg.append(el('path', {d: line(smoothed ? smooth(points, state.smooth) : points), fill: 'none', stroke: s.colour,
        'stroke-width': s.thin ? 1.2 : 1.9, 'stroke-linejoin': 'round', 'stroke-linecap': 'round'}));
      if (s.dots && points.length <= 60) for (const p of points) svg.append(el('circle', {cx: X(p[0]), cy: Y(p[1]), r: 3.1, fill: s.colour, stroke: 'var(--card)', 'stroke-width': 1.2}));
    }
    const cross = el('line', {class: 'cross', y1: top, y2: height - bottom, visibility: 'hidden'});
    svg.append(cross);
    const hover = e => {
      const at = x0 + (e.clientX - svg.getBoundingClientRect().left - left) / (width - left - right) * (x1 - x0);
      const rows = [];
      let step = null;
      for (const s of series) {
        let best = null;
        for (const p of s.points) if (!best || Math.abs(p[0] - at) < Math.abs(best[0] - at)) best = p;
        if (!best || Math.abs(best[0] - at) > (x1 - x0) * 0.1) continue;
        if (step === null || Math.abs(best[0] - at) < Math.abs(step - at)) step = best[0];
        const spread = best.length > 2 ? ` (${format(best[2])} to ${format(best[3])})` : '';
        rows.push(el('div', {}, el('i', {style: `background:${s.colour}`}), `${s.name}  ${format(best[1], 5)}${spread}${s.dots ? ` at ${num(best[0])}` : ''}`));
      }
      if (step === null) { tip(e, null); return; }
      cross.setAttribute('x1', X(step)); cross.setAttribute('x2', X(step)); cross.setAttribute('visibility', 'visible');
      tip(e, [el('div', {}, `step ${num(step)}`), ...rows]);
    };
    svg.addEventListener('pointermove', hover);
    svg.addEventListener('pointerdown', hover);
    svg.addEventListener('pointerleave', e => { cross.setAttribute('visibility', 'hidden'); tip(e, null); });
    box.replaceChildren(svg);
  }
  watch(box, draw);
  return card;
}

// Draws when the element is there and whenever its width changes.
function watch(box, draw) {
  let width = -1;
  // In the next frame: drawing changes sizes, and a browser reports an error when an observer does.
  new ResizeObserver(() => requestAnimationFrame(() => {
    if (box.clientWidth === width) return;
    width = box.clientWidth;
    draw();
  })).observe(box);
}

function table(rows) {
  return el('div', {class: 'scroll'}, el('table', {}, el('tbody', {}, rows.filter(r => r[1] !== undefined && r[1] !== null && r[1] !== '')
    .map(([k, v]) => el('tr', {}, el('th', {}, k), el('td', {}, v))))));
}
function card(title, size, ...children) {
  return el('section', {class: `card ${size}`}, el('div', {class: 'head'}, el('h2', {}, title)), ...children);
}
